// SPDX-License-Identifier: Apache-2.0
// Integer products of bands: codes of tiles as codec/bands_pack.h unpacks them, [quads][16
// tokens][4 components], with queries and weights rounded to 8 bits. Sums are exact: of at most
// 4096 products below 2^14.
#pragma once

#include <cstdint>

#include "base/cpu_level.h"

namespace kvspan {

struct BandsAttentionKernels {
  // sums[r * 16 + t] = sum over quads q and k < 4 of codes[q][t][k] * queries[r * stride + 4 q +
  // k].
  void (*score)(const std::int8_t* codes, std::int32_t quads, const std::int8_t* queries,
                std::int32_t stride, std::int32_t rows, std::int32_t* sums) noexcept;
  // sums[r * 4 quads + 4 q + k] = sum over tiles i and t < 16 of codes[i][q][t][k] * weights[r *
  // 16 tiles + 16 i + t]; tiles lie quads * 64 apart. Weights are 0 .. 127.
  void (*weigh)(const std::int8_t* codes, std::int32_t tiles, std::int32_t quads,
                const std::int8_t* weights, std::int32_t rows, std::int32_t* sums) noexcept;
  // x[i] *= factors[i], i < count (a multiple of 4); returns their sum in four lanes' order and
  // sets *largest to the largest |x[i]|.
  float (*scale)(float* x, const float* factors, std::int32_t count, float* largest) noexcept;
  // The largest |x[i]|, i < count, a multiple of 4.
  float (*largest)(const float* x, std::int32_t count) noexcept;
  // to[i] = x[i] * factor to the nearest whole number, ties to even; within -127 .. 127. count is a
  // multiple of 4.
  void (*round)(const float* x, float factor, std::int32_t count, std::int8_t* to) noexcept;
  // For r < vectors: to[r * cols + j] += sum over i < rows of factors[r * stride + i] * matrix[i *
  // cols + j], j < cols.
  void (*project)(const float* factors, std::int32_t stride, std::int32_t vectors,
                  const float* matrix, std::int32_t rows, std::int32_t cols, float* to) noexcept;
};

// The table of a level this processor has.
const BandsAttentionKernels& bands_attention_kernels(CpuLevel level) noexcept;

namespace detail {
extern const BandsAttentionKernels kBandsAttentionRef;
extern const BandsAttentionKernels kBandsAttentionNeon;
extern const BandsAttentionKernels kBandsAttentionAvx2;
}  // namespace detail

}  // namespace kvspan
