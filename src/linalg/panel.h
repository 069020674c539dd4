// SPDX-License-Identifier: Apache-2.0
// Working memory of the linear algebra: f64, laid out as dense_kernels.h asks (rows on cache lines,
// zeros beyond the edge in both directions).
#pragma once

#include <cstddef>

#include "base/memory.h"
#include "linalg/dense_kernels.h"
#include "linalg/matrix.h"

namespace kvspan::detail {

class Panel {
 public:
  Panel() = default;
  // Zeros. Rows are padded too: every count of rows up to padded(rows) may be touched.
  Panel(std::size_t rows, std::size_t cols)
      : rows_(rows),
        cols_(cols),
        stride_(padded(cols)),
        buffer_(padded(rows) * padded(cols) * sizeof(double), MemoryKind::kSketches, nullptr) {}

  template <class T>
  static Panel of(TensorView<const T, 2> A) {
    Panel panel(A.shape[0], A.shape[1]);
    for (std::size_t i = 0; i < panel.rows_; ++i) {
      const T* from = A.row(i);
      double* to = panel.row(i);
      for (std::size_t j = 0; j < panel.cols_; ++j) to[j] = static_cast<double>(from[j]);
    }
    return panel;
  }
  template <class T>
  static Panel transposed(TensorView<const T, 2> A) {
    Panel panel(A.shape[1], A.shape[0]);
    for (std::size_t i = 0; i < panel.cols_; ++i) {
      const T* from = A.row(i);
      for (std::size_t j = 0; j < panel.rows_; ++j) panel(j, i) = static_cast<double>(from[j]);
    }
    return panel;
  }

  std::size_t rows() const noexcept { return rows_; }
  std::size_t cols() const noexcept { return cols_; }
  std::size_t stride() const noexcept { return stride_; }
  double* row(std::size_t i) noexcept { return buffer_.as<double>() + i * stride_; }
  const double* row(std::size_t i) const noexcept { return buffer_.as<double>() + i * stride_; }
  double& operator()(std::size_t i, std::size_t j) noexcept { return row(i)[j]; }
  double operator()(std::size_t i, std::size_t j) const noexcept { return row(i)[j]; }
  TensorView<const double, 2> view() const { return {row(0), {rows_, cols_}, {stride_, 1}}; }

 private:
  std::size_t rows_ = 0;
  std::size_t cols_ = 0;
  std::size_t stride_ = 0;
  Buffer buffer_;
};

// Reductions over a padded vector; `count` is rounded up to the padding, which counts as 0. Pairs
// of doubles are what every processor of the two families has.
typedef double Pair __attribute__((vector_size(16), may_alias));
inline constexpr std::size_t kPairs = kPanelAlign / 2;

struct Extremes {
  double least = 0.0;     // at most 0
  double greatest = 0.0;  // at least 0
};
inline Extremes extremes(const double* x, std::size_t count) noexcept {
  Pair low[kPairs] = {}, high[kPairs] = {};
  for (std::size_t i = 0; i < count; i += kPanelAlign) {
    const Pair* from = reinterpret_cast<const Pair*>(x + i);
    for (std::size_t q = 0; q < kPairs; ++q) {
      low[q] = from[q] < low[q] ? from[q] : low[q];
      high[q] = from[q] > high[q] ? from[q] : high[q];
    }
  }
  for (std::size_t q = 1; q < kPairs; ++q) {
    low[0] = low[q] < low[0] ? low[q] : low[0];
    high[0] = high[q] > high[0] ? high[q] : high[0];
  }
  return {low[0][0] < low[0][1] ? low[0][0] : low[0][1],
          high[0][0] > high[0][1] ? high[0][0] : high[0][1]};
}
inline double inner_product(const double* x, const double* y, std::size_t count) noexcept {
  Pair part[kPairs] = {};
  for (std::size_t i = 0; i < count; i += kPanelAlign) {
    const Pair* a = reinterpret_cast<const Pair*>(x + i);
    const Pair* b = reinterpret_cast<const Pair*>(y + i);
    for (std::size_t q = 0; q < kPairs; ++q) part[q] += a[q] * b[q];
  }
  const Pair sum = (part[0] + part[1]) + (part[2] + part[3]);
  return sum[0] + sum[1];
}

// A'B for A [k, m] and B [k, n].
inline Panel outer_product(const Panel& A, const Panel& B) {
  Panel C(A.cols(), B.cols());
  dense_kernels().add_outer(C.row(0), C.stride(), A.row(0), A.stride(), B.row(0), B.stride(),
                            padded(A.cols()), padded(B.cols()), A.rows());
  return C;
}

// A'A for A [k, m]: only the blocks of 8 x 8 on and below the diagonal are computed.
inline Panel gram_of_columns(const Panel& A) {
  Panel G(A.cols(), A.cols());
  for (std::size_t i = 0; i < A.cols(); i += kPanelAlign) {
    dense_kernels().add_outer(G.row(i), G.stride(), A.row(0) + i, A.stride(), A.row(0), A.stride(),
                              kPanelAlign, i + kPanelAlign, A.rows());
  }
  return G;
}

}  // namespace kvspan::detail
