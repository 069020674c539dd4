// SPDX-License-Identifier: Apache-2.0
// The plain loops of bands_kernels.h, for every instruction set that a compiler vectorises well.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kvspan::detail {
namespace {

[[maybe_unused]] void score_plain(const std::int8_t* codes, std::int32_t quads,
                                  const std::int8_t* queries, std::int32_t stride,
                                  std::int32_t rows, std::int32_t* sums) noexcept {
  std::fill_n(sums, rows * 16, 0);
  for (std::int32_t q = 0; q < quads; ++q, codes += 64) {
    for (std::int32_t r = 0; r < rows; ++r) {
      const std::int8_t* query = queries + static_cast<std::ptrdiff_t>(r) * stride + 4 * q;
      std::int32_t* to = sums + r * 16;
      for (std::int32_t t = 0; t < 16; ++t) {
        to[t] += codes[4 * t] * query[0] + codes[4 * t + 1] * query[1] +
                 codes[4 * t + 2] * query[2] + codes[4 * t + 3] * query[3];
      }
    }
  }
}

[[maybe_unused]] void weigh_plain(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
                                  const std::int8_t* weights, std::int32_t rows,
                                  std::int32_t* sums) noexcept {
  std::fill_n(sums, static_cast<std::ptrdiff_t>(rows) * 4 * quads, 0);
  for (std::int32_t i = 0; i < tiles; ++i) {
    for (std::int32_t q = 0; q < quads; ++q, codes += 64) {
      for (std::int32_t r = 0; r < rows; ++r) {
        const std::int8_t* w = weights + static_cast<std::ptrdiff_t>(r) * 16 * tiles + 16 * i;
        std::int32_t total[4] = {};
        for (std::int32_t t = 0; t < 16; ++t) {
          for (std::int32_t k = 0; k < 4; ++k) total[k] += codes[4 * t + k] * w[t];
        }
        std::int32_t* to = sums + (static_cast<std::ptrdiff_t>(r) * quads + q) * 4;
        for (std::int32_t k = 0; k < 4; ++k) to[k] += total[k];
      }
    }
  }
}

float scale_plain(float* x, const float* factors, std::int32_t count, float* largest) noexcept {
  float sums[4] = {}, most = 0.0f;
  for (std::int32_t i = 0; i < count; ++i) {
    x[i] *= factors[i];
    sums[i % 4] += x[i];
    most = std::max(most, std::abs(x[i]));
  }
  *largest = most;
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

float largest_plain(const float* x, std::int32_t count) noexcept {
  float most = 0.0f;
  for (std::int32_t i = 0; i < count; ++i) most = std::max(most, std::abs(x[i]));
  return most;
}

void round_plain(const float* x, float factor, std::int32_t count, std::int8_t* to) noexcept {
  for (std::int32_t i = 0; i < count; ++i) {
    to[i] = static_cast<std::int8_t>(std::nearbyint(x[i] * factor));
  }
}

void project_plain(const float* factors, std::int32_t stride, std::int32_t vectors,
                   const float* matrix, std::int32_t rows, std::int32_t cols, float* to) noexcept {
  for (std::int32_t r = 0; r < vectors; ++r, factors += stride, to += cols) {
    const float* from = matrix;
    for (std::int32_t i = 0; i < rows; ++i, from += cols) {
      const float factor = factors[i];
      for (std::int32_t j = 0; j < cols; ++j) to[j] += factor * from[j];
    }
  }
}

}  // namespace
}  // namespace kvspan::detail
