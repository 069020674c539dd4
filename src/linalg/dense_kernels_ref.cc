// SPDX-License-Identifier: Apache-2.0
// The plain loops of dense_kernels.h.
#include <algorithm>

#include "linalg/dense_kernels.h"

namespace kvspan::detail {
namespace {

void add_outer_ref(double* C, std::size_t c_stride, const double* A, std::size_t a_stride,
                   const double* B, std::size_t b_stride, std::size_t m, std::size_t n,
                   std::size_t k) noexcept {
  for (std::size_t t = 0; t < k; ++t) {
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        C[i * c_stride + j] += A[t * a_stride + i] * B[t * b_stride + j];
      }
    }
  }
}

void update_and_multiply_ref(double* A, std::size_t stride, std::size_t first, std::size_t n,
                             const double* v, const double* w, const double* u,
                             double* p) noexcept {
  for (std::size_t i = first; i < n; ++i) p[i] = 0.0;
  for (std::size_t i = first; i < n; ++i) {
    const std::size_t block = i / kPanelAlign * kPanelAlign;
    for (std::size_t j = first; j < std::min(block + kPanelAlign, n); ++j) {
      double& a = A[i * stride + j];
      a -= v[i] * w[j] + w[i] * v[j];
      p[i] += a * u[j];
      if (j < block) p[j] += a * u[i];
    }
  }
}

void rotate_rows_ref(double* Z, std::size_t stride, std::size_t cols, std::size_t low,
                     std::size_t high, const double* sines, const double* halves,
                     QlSweep& aside) noexcept {
  for (std::size_t i = high; i-- > low;) {
    const double s = sines[i];
    const double c = 1.0 - s * halves[i];
    for (std::size_t j = 0; j < cols; ++j) {
      const double x = Z[i * stride + j];
      const double y = Z[(i + 1) * stride + j];
      Z[i * stride + j] = c * x - s * y;
      Z[(i + 1) * stride + j] = s * x + c * y;
    }
  }
  finish(aside);
}

void reflect_rows_ref(double* Z, std::size_t stride, std::size_t first, std::size_t cols,
                      std::size_t rows, const double* v, double tau) noexcept {
  for (std::size_t i = 0; i < rows; ++i) {
    double sum = 0.0;
    for (std::size_t j = first; j < cols; ++j) sum += Z[i * stride + j] * v[j];
    for (std::size_t j = first; j < cols; ++j) Z[i * stride + j] -= tau * sum * v[j];
  }
}

void reflect_rows_twice_ref(double* Z, std::size_t stride, std::size_t first, std::size_t cols,
                            std::size_t rows, const double* v, double v_tau, const double* w,
                            double w_tau, double) noexcept {
  reflect_rows_ref(Z, stride, first, cols, rows, v, v_tau);
  reflect_rows_ref(Z, stride, first, cols, rows, w, w_tau);
}

}  // namespace

const DenseKernels kDenseReference{add_outer_ref, update_and_multiply_ref, rotate_rows_ref,
                                   reflect_rows_ref, reflect_rows_twice_ref};

}  // namespace kvspan::detail
