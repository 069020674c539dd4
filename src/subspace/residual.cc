// SPDX-License-Identifier: Apache-2.0
#include "subspace/residual.h"

#include <algorithm>

#include "base/expect.h"
#include "subspace/squared_length.h"

namespace kvspan {
namespace {

// Rows i .. i + Rows - 1 of Bx, side by side: one sum alone would wait for each addition.
template <std::size_t Rows>
void multiply(std::span<const float> x, MatrixView B, std::size_t i, float* c) {
  const float* row[Rows];
  double sum[Rows] = {};
  for (std::size_t q = 0; q < Rows; ++q) row[q] = B.row(i + q);
  for (std::size_t j = 0; j < x.size(); ++j) {
    const double value = x[j];
    for (std::size_t q = 0; q < Rows; ++q) sum[q] += value * row[q][j];
  }
  for (std::size_t q = 0; q < Rows; ++q) c[i + q] = static_cast<float>(sum[q]);
}

}  // namespace

double residual_squared(std::span<const float> x, std::span<const float> c, MatrixView B) noexcept {
  KVSPAN_EXPECT(c.size() == B.shape[0] && x.size() == B.shape[1], "c = Bx");
  const double whole = detail::squared_length(x.data(), x.size());
  const double difference = std::max(whole - detail::squared_length(c.data(), c.size()), 0.0);
  if (difference >= kCancellationGuard * whole) return difference;
  double sum = 0.0;
  for (std::size_t j = 0; j < x.size(); ++j) {
    double left = x[j];
    for (std::size_t i = 0; i < c.size(); ++i) {
      left -= static_cast<double>(c[i]) * B.data[i * B.strides[0] + j];
    }
    sum += left * left;
  }
  return sum;
}

double project(std::span<const float> x, MatrixView B, std::span<float> c) noexcept {
  KVSPAN_EXPECT(c.size() == B.shape[0] && x.size() == B.shape[1], "c = Bx");
  std::size_t i = 0;
  for (; i + 8 <= c.size(); i += 8) multiply<8>(x, B, i, c.data());
  for (; i < c.size(); ++i) multiply<1>(x, B, i, c.data());
  return residual_squared(x, c, B);
}

}  // namespace kvspan
