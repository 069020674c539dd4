// SPDX-License-Identifier: Apache-2.0
// What the linear algebra and the trackers are held against: dense f64 algebra by Eigen. Behind
// plain functions, because a test file that instantiates Eigen's solvers itself takes half a minute
// to compile.
#pragma once

#include <span>
#include <vector>

#include "linalg/matrix.h"

namespace kvspan {

// The rows in f64, each times the root of its weight where weights are given.
MatrixD dense(MatrixView A);
MatrixD dense(MatrixView A, std::span<const float> weights);

MatrixD transposed(const MatrixD& A);
MatrixD product(const MatrixD& A, const MatrixD& B);
MatrixD sum(const MatrixD& A, double factor, const MatrixD& B);  // A + factor B
MatrixD stacked(const MatrixD& above, const MatrixD& below);
double squared_norm(const MatrixD& A);  // |A|_F^2

// Thin: Q [m, n] and upper triangular R [n, n] of A [m, n], m >= n. R's diagonal may be negative.
struct HouseholderQr {
  MatrixD Q, R;
};
HouseholderQr householder_qr(const MatrixD& A);

// Eigenvalues of a symmetric matrix, ascending; its lower triangle is read.
std::vector<double> symmetric_eigenvalues(const MatrixD& G);

// Squared singular values, descending; min(m, n) of them.
std::vector<double> squared_singular_values(const MatrixD& A);

// A (I - B'B) for the basis as it is, rounding and all, and |A (I - B'B)|_op^2.
MatrixD outside(const MatrixD& A, MatrixView B);
double left_out(const MatrixD& A, MatrixView B);

}  // namespace kvspan
