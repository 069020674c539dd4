// SPDX-License-Identifier: Apache-2.0
#include "tests/linalg/eigen_oracle.h"

#include <Eigen/Eigenvalues>
#include <Eigen/QR>
#include <Eigen/SVD>
#include <cmath>

namespace kvspan {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Map<const RowMajor> eigen(const MatrixD& A) {
  return {A.data(), static_cast<Eigen::Index>(A.rows()), static_cast<Eigen::Index>(A.cols())};
}

MatrixD ours(const Eigen::MatrixXd& M) {
  MatrixD A(static_cast<std::size_t>(M.rows()), static_cast<std::size_t>(M.cols()));
  Eigen::Map<RowMajor>(A.data(), M.rows(), M.cols()) = M;
  return A;
}

}  // namespace

MatrixD dense(MatrixView A) {
  MatrixD M(A.shape[0], A.shape[1]);
  for (std::size_t i = 0; i < M.rows(); ++i) {
    for (std::size_t j = 0; j < M.cols(); ++j) M(i, j) = A.row(i)[j];
  }
  return M;
}

MatrixD dense(MatrixView A, std::span<const float> weights) {
  MatrixD M = dense(A);
  for (std::size_t i = 0; i < M.rows(); ++i) {
    const double root = std::sqrt(static_cast<double>(weights[i]));
    for (std::size_t j = 0; j < M.cols(); ++j) M(i, j) *= root;
  }
  return M;
}

MatrixD transposed(const MatrixD& A) {
  return ours(eigen(A).transpose());
}

MatrixD product(const MatrixD& A, const MatrixD& B) {
  return ours(eigen(A) * eigen(B));
}

MatrixD sum(const MatrixD& A, double factor, const MatrixD& B) {
  return ours(eigen(A) + factor * eigen(B));
}

MatrixD stacked(const MatrixD& above, const MatrixD& below) {
  Eigen::MatrixXd M(eigen(above).rows() + eigen(below).rows(), eigen(above).cols());
  M << eigen(above), eigen(below);
  return ours(M);
}

double squared_norm(const MatrixD& A) {
  return eigen(A).squaredNorm();
}

HouseholderQr householder_qr(const MatrixD& A) {
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(eigen(A));
  const Eigen::Index m = qr.rows(), n = qr.cols();
  return {ours(qr.householderQ() * Eigen::MatrixXd::Identity(m, n)),
          ours(qr.matrixQR().topRows(n).triangularView<Eigen::Upper>())};
}

std::vector<double> symmetric_eigenvalues(const MatrixD& G) {
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(eigen(G), Eigen::EigenvaluesOnly);
  return {solver.eigenvalues().begin(), solver.eigenvalues().end()};
}

std::vector<double> squared_singular_values(const MatrixD& A) {
  if (A.rows() == 0 || A.cols() == 0) return {};
  const Eigen::JacobiSVD<Eigen::MatrixXd> svd(eigen(A));
  std::vector<double> squared(svd.singularValues().begin(), svd.singularValues().end());
  for (double& s : squared) s *= s;
  return squared;
}

MatrixD outside(const MatrixD& A, MatrixView B) {
  const MatrixD basis = dense(B);
  return ours(eigen(A) - eigen(A) * eigen(basis).transpose() * eigen(basis));
}

double left_out(const MatrixD& A, MatrixView B) {
  const std::vector<double> squared = squared_singular_values(outside(A, B));
  return squared.empty() ? 0.0 : squared.front();
}

}  // namespace kvspan
