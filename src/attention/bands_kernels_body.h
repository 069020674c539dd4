// SPDX-License-Identifier: Apache-2.0
// The plain loops of bands_kernels.h, for every instruction set that a compiler vectorises well.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvspan::detail {
namespace {

void score_plain(const std::int8_t* codes, std::int32_t quads, const std::int8_t* queries,
                 std::int32_t stride, std::int32_t rows, std::int32_t* sums) noexcept {
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

void weigh_plain(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
                 const std::int8_t* weights, std::int32_t rows, std::int32_t* sums) noexcept {
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

void project_plain(const float* factors, const float* matrix, std::int32_t rows, std::int32_t cols,
                   float* to) noexcept {
  for (std::int32_t i = 0; i < rows; ++i, matrix += cols) {
    const float factor = factors[i];
    for (std::int32_t j = 0; j < cols; ++j) to[j] += factor * matrix[j];
  }
}

}  // namespace
}  // namespace kvspan::detail
