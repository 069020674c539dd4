// SPDX-License-Identifier: Apache-2.0
#include "linalg/svd.h"

#include <Eigen/QR>
#include <Eigen/SVD>
#include <algorithm>

#include "base/expect.h"
#include "base/fail.h"
#include "base/random.h"
#include "linalg/batch.h"
#include "linalg/finite.h"

namespace kvspan {
namespace {

using Mat = Eigen::MatrixXd;
using RowMajorF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

auto map_rows(MatrixView A, std::size_t first, std::size_t count) {
  return Eigen::Map<const RowMajorF, 0, Eigen::OuterStride<>>(
      A.row(first), static_cast<Eigen::Index>(count), static_cast<Eigen::Index>(A.shape[1]),
      Eigen::OuterStride<>(static_cast<Eigen::Index>(A.strides[0])));
}

Matrix rounded(const Mat& M) {
  Matrix out(static_cast<std::size_t>(M.rows()), static_cast<std::size_t>(M.cols()));
  Eigen::Map<RowMajorF>(out.data(), M.rows(), M.cols()) = M.cast<float>();
  return out;
}

struct Factors {
  Mat U;
  Eigen::VectorXd sigma;
  Mat V;
};

// Divide and conquer on a matrix with at least as many rows as columns, after QR where that saves
// work.
Factors decompose_tall(const Mat& A) {
  constexpr unsigned kThin = Eigen::ComputeThinU | Eigen::ComputeThinV;
  if (A.rows() <= 2 * A.cols()) {
    const Eigen::BDCSVD<Mat> svd(A, kThin);
    return {svd.matrixU(), svd.singularValues(), svd.matrixV()};
  }
  const Eigen::HouseholderQR<Mat> qr(A);
  const Mat R = qr.matrixQR().topRows(A.cols()).triangularView<Eigen::Upper>();
  const Eigen::BDCSVD<Mat> svd(R, kThin);
  Mat U = Mat::Zero(A.rows(), A.cols());
  U.topRows(A.cols()) = svd.matrixU();
  U.applyOnTheLeft(qr.householderQ());
  return {std::move(U), svd.singularValues(), svd.matrixV()};
}

Factors decompose(const Mat& A) {
  if (A.rows() >= A.cols()) return decompose_tall(A);
  Factors turned = decompose_tall(A.transpose());
  return {std::move(turned.V), std::move(turned.sigma), std::move(turned.U)};
}

Svd to_svd(const Mat& U, const Eigen::VectorXd& sigma, const Mat& V) {
  Svd svd{rounded(U), {sigma.data(), sigma.data() + sigma.size()}, rounded(V.transpose())};
  for (double& value : svd.sigma) value = std::max(value, 0.0);
  return svd;
}

// Products with A in f64, a block of rows at a time, so that no f64 copy of A is held.
constexpr std::size_t kBlockRows = 512;

Mat times(MatrixView A, const Mat& X) {
  Mat Y(static_cast<Eigen::Index>(A.shape[0]), X.cols());
  for (std::size_t i = 0; i < A.shape[0]; i += kBlockRows) {
    const std::size_t count = std::min(kBlockRows, A.shape[0] - i);
    Y.middleRows(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(count)).noalias() =
        map_rows(A, i, count).cast<double>() * X;
  }
  return Y;
}

Mat transposed_times(MatrixView A, const Mat& Y) {
  Mat X = Mat::Zero(static_cast<Eigen::Index>(A.shape[1]), Y.cols());
  for (std::size_t i = 0; i < A.shape[0]; i += kBlockRows) {
    const std::size_t count = std::min(kBlockRows, A.shape[0] - i);
    const Mat block = map_rows(A, i, count).cast<double>();
    X.noalias() += block.transpose() *
                   Y.middleRows(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(count));
  }
  return X;
}

Mat orthonormal_columns(const Mat& Y) {
  const Eigen::HouseholderQR<Mat> qr(Y);
  return qr.householderQ() * Mat::Identity(Y.rows(), Y.cols());
}

}  // namespace

Result<Svd> thin_svd(MatrixView A) {
  KVSPAN_CHECK_OK(check_finite(A, "matrix for SVD"));
  if (A.shape[0] == 0 || A.shape[1] == 0)
    return Svd{Matrix(A.shape[0], 0), {}, Matrix(0, A.shape[1])};
  const Factors f = decompose(map_rows(A, 0, A.shape[0]).cast<double>());
  return to_svd(f.U, f.sigma, f.V);
}

Result<Svd> randomized_svd(MatrixView A, std::size_t rank, const RandomizedSvdOptions& options) {
  KVSPAN_CHECK_OK(check_finite(A, "matrix for SVD"));
  const std::size_t smaller = std::min(A.shape[0], A.shape[1]);
  const auto k = static_cast<Eigen::Index>(std::min(rank, smaller));
  if (k == 0) return Svd{Matrix(A.shape[0], 0), {}, Matrix(0, A.shape[1])};
  const auto width = static_cast<Eigen::Index>(std::min(rank + options.oversample, smaller));
  Random random(options.seed);
  Mat X(static_cast<Eigen::Index>(A.shape[1]), width);
  for (Eigen::Index j = 0; j < X.cols(); ++j) {
    for (Eigen::Index i = 0; i < X.rows(); ++i) X(i, j) = random.normal();
  }
  Mat Q = orthonormal_columns(times(A, X));
  for (int pass = 0; pass < options.power_iterations; ++pass) {
    Q = orthonormal_columns(times(A, orthonormal_columns(transposed_times(A, Q))));
  }
  const Factors f = decompose(transposed_times(A, Q).transpose());
  return to_svd(Q * f.U.leftCols(k), f.sigma.head(k), f.V.leftCols(k));
}

void thin_svd_batch(std::span<const MatrixView> matrices, std::span<Result<Svd>> out, Team& team) {
  KVSPAN_EXPECT(matrices.size() == out.size(), "one result per matrix");
  share_out(team, matrices.size(), [&](std::size_t i) { out[i] = thin_svd(matrices[i]); });
}

}  // namespace kvspan
