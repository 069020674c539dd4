// SPDX-License-Identifier: Apache-2.0
// Eigenvalues and eigenvectors of a symmetric matrix, in f64.
// Promise: |G - V' diag(values) V| and |VV' - I| are a small multiple of n 2^-53 |G|, for every
// finite G: rank-deficient, zero, with repeated eigenvalues, of any scale whose square is finite.
// Method: Householder tridiagonalisation, then implicit QL with Wilkinson's shift, the rotations of
// a sweep applied together (Bowdler, Martin, Reinsch, Wilkinson 1968). Cost: about 8 n^3 flops.
#pragma once

#include <span>
#include <vector>

#include "kvspan/result.h"
#include "kvspan/team.h"
#include "linalg/matrix.h"

namespace kvspan {

struct SymmetricEigen {
  std::vector<double> values;  // [n], descending
  MatrixD vectors;             // [n, n]; row i is the eigenvector of values[i]
};

// G: [n, n]; only the lower triangle and the diagonal are read. Fails on an entry that is not
// finite, naming its row and column.
Result<SymmetricEigen> symmetric_eigen(MatrixViewD G);

namespace detail {

class Panel;

// The same without checks or copies: A [n, n], finite on and below the diagonal, is destroyed.
void symmetric_eigen_in_place(Panel& A, std::span<double> values, TensorView<double, 2> vectors);

}  // namespace detail
}  // namespace kvspan
