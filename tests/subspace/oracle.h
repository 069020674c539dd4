// SPDX-License-Identifier: Apache-2.0
// What trackers are held against: dense f64 algebra by Eigen, on the rows themselves.
#pragma once

#include <Eigen/Eigenvalues>
#include <Eigen/SVD>
#include <span>

#include "linalg/matrix.h"

namespace kvspan {

inline Eigen::MatrixXd dense(MatrixView A) {
  Eigen::MatrixXd M(static_cast<Eigen::Index>(A.shape[0]), static_cast<Eigen::Index>(A.shape[1]));
  for (Eigen::Index i = 0; i < M.rows(); ++i) {
    for (Eigen::Index j = 0; j < M.cols(); ++j) {
      M(i, j) = A.row(static_cast<std::size_t>(i))[static_cast<std::size_t>(j)];
    }
  }
  return M;
}

inline Eigen::MatrixXd dense(MatrixView A, std::span<const float> weights) {
  Eigen::MatrixXd M = dense(A);
  for (Eigen::Index i = 0; i < M.rows(); ++i) {
    M.row(i) *= std::sqrt(static_cast<double>(weights[static_cast<std::size_t>(i)]));
  }
  return M;
}

// |M|_op^2.
inline double squared_norm_of(const Eigen::MatrixXd& M) {
  if (M.size() == 0) return 0.0;
  const double s = Eigen::JacobiSVD<Eigen::MatrixXd>(M).singularValues()[0];
  return s * s;
}

// Squared singular values, descending.
inline Eigen::VectorXd squared_singular_values(const Eigen::MatrixXd& M) {
  return Eigen::JacobiSVD<Eigen::MatrixXd>(M).singularValues().array().square();
}

// |A (I - B'B)|_op^2 for the basis as it is, rounding and all.
inline double left_out(const Eigen::MatrixXd& A, MatrixView B) {
  const Eigen::MatrixXd basis = dense(B);
  return squared_norm_of(A - A * basis.transpose() * basis);
}

}  // namespace kvspan
