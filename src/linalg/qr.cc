// SPDX-License-Identifier: Apache-2.0
#include "linalg/qr.h"

#include <algorithm>
#include <vector>

#include "base/expect.h"
#include "base/fail.h"
#include "linalg/finite.h"
#include "linalg/householder.h"

namespace kvspan {
namespace detail {

// Rows, not columns, because rows are contiguous: [L 0] = A H_0 ... H_r-1, each reflector taken
// from one row and applied to those below it.
ThinLq thin_lq(MatrixViewD A) {
  const std::size_t r = A.shape[0], d = A.shape[1];
  KVSPAN_EXPECT(r <= d, "no more rows than columns");
  const auto& kernels = dense_kernels();
  ThinLq result{MatrixD(r, r), MatrixD(r, d)};
  // Kernels take rows in fours, starting anywhere: room for the last group.
  Panel work(r + kPanelAlign, d), reflectors(r, d);
  std::vector<double> tau(r);
  for (std::size_t i = 0; i < r; ++i) std::copy(A.row(i), A.row(i) + d, work.row(i));
  for (std::size_t k = 0; k < r; ++k) {
    double* u = reflectors.row(k);
    std::copy(work.row(k) + k, work.row(k) + d, u + k);
    std::copy(work.row(k), work.row(k) + k, result.L.row(k));
    const Reflector reflector = make_reflector(u, k, d);
    result.L(k, k) = reflector.image;
    tau[k] = reflector.tau;
    kernels.reflect_rows(work.row(k + 1), work.stride(), k, d, r - k - 1, u, tau[k]);
  }
  for (std::size_t i = 0; i < r; ++i) {
    std::fill(work.row(i), work.row(i) + d, 0.0);
    work(i, i) = 1.0;
  }
  for (std::size_t k = r; k-- > 0;) {
    kernels.reflect_rows(work.row(k), work.stride(), k, d, r - k, reflectors.row(k), tau[k]);
  }
  for (std::size_t i = 0; i < r; ++i) {
    const double sign = result.L(i, i) < 0.0 ? -1.0 : 1.0;
    for (std::size_t j = 0; j < d; ++j) result.Q(i, j) = sign * work(i, j);
    for (std::size_t k = i; k < r; ++k) result.L(k, i) *= sign;
  }
  return result;
}

}  // namespace detail

namespace {

MatrixD transposed(TensorView<const float, 2> A, std::size_t columns) {
  MatrixD T(columns, A.shape[0]);
  for (std::size_t i = 0; i < A.shape[0]; ++i) {
    for (std::size_t j = 0; j < columns; ++j) T(j, i) = A.row(i)[j];
  }
  return T;
}

template <class T>
Result<Matrix> orthonormal(TensorView<const T, 2> A) {
  KVSPAN_CHECK_OK(check_finite(A, "rows to orthonormalise"));
  MatrixD copy(A.shape[0], A.shape[1]);
  for (std::size_t i = 0; i < A.shape[0]; ++i) {
    std::copy(A.row(i), A.row(i) + A.shape[1], copy.row(i));
  }
  const MatrixD Q = detail::thin_lq(copy.view()).Q;
  Matrix rounded(Q.rows(), Q.cols());
  std::copy(Q.data(), Q.data() + Q.rows() * Q.cols(), rounded.data());
  return rounded;
}

}  // namespace

Result<ThinQr> thin_qr(MatrixView A) {
  KVSPAN_CHECK_OK(check_finite(A, "matrix for QR"));
  const std::size_t m = A.shape[0], n = A.shape[1], k = std::min(m, n);
  const detail::ThinLq lq = detail::thin_lq(transposed(A, k).view());
  ThinQr result{Matrix(m, k), Matrix(k, n)};
  for (std::size_t i = 0; i < k; ++i) {
    for (std::size_t j = 0; j < m; ++j) result.Q(j, i) = static_cast<float>(lq.Q(i, j));
    for (std::size_t j = i; j < k; ++j) result.R(i, j) = static_cast<float>(lq.L(j, i));
    for (std::size_t j = k; j < n; ++j) {  // columns beyond a square: R = Q'A
      double sum = 0.0;
      for (std::size_t t = 0; t < m; ++t) sum += lq.Q(i, t) * A.row(t)[j];
      result.R(i, j) = static_cast<float>(sum);
    }
  }
  return result;
}

Result<Matrix> orthonormal_rows(MatrixView A) {
  return orthonormal(A);
}
Result<Matrix> orthonormal_rows(MatrixViewD A) {
  return orthonormal(A);
}

}  // namespace kvspan
