// SPDX-License-Identifier: Apache-2.0
// Numbers of the caller's rows, of whichever type, and full-rank rows of the cache.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/attend_call.h"
#include "cuda/kernels/mma.cuh"

namespace kvspan::cuda {

// Without a branch, so that several can be asked for before the first is there: numbers of 16 bits
// are taken out of the word that they lie in.
__device__ __forceinline__ float read_number(const void* data, std::int64_t at, RowType type) {
  const bool wide = type == RowType::kF32;
  const std::uint32_t word = __ldg(static_cast<const std::uint32_t*>(data) + (wide ? at : at >> 1));
  const std::uint32_t half = (at & 1) != 0 ? word >> 16 : word & 0xffffu;
  const float f16 = __half2float(__ushort_as_half(static_cast<unsigned short>(half)));
  const std::uint32_t others = wide ? word : half << 16;
  return type == RowType::kF16 ? f16 : __uint_as_float(others);
}

// Numbers `at` and `at` + 1, `at` even; without a branch too.
__device__ __forceinline__ float2 read_two(const void* data, std::int64_t at, RowType type) {
  const bool wide = type == RowType::kF32;
  const auto* const words = static_cast<const std::uint32_t*>(data) + (wide ? at : at >> 1);
  const std::uint32_t first = __ldg(words), second = __ldg(words + (wide ? 1 : 0));
  const float2 f16 = __half22float2(*reinterpret_cast<const __half2*>(&first));
  const float x = __uint_as_float(wide ? first : first << 16);
  const float y = __uint_as_float(wide ? second : first & 0xffff0000u);
  return type == RowType::kF16 ? f16 : make_float2(x, y);
}

// Comes before read_number and read_two of numbers from `at` on.
__device__ __forceinline__ void prefetch_numbers(const void* data, std::int64_t at, RowType type) {
  prefetch(static_cast<const char*>(data) + at * (type == RowType::kF32 ? 4 : 2));
}

__device__ __forceinline__ void write_number(void* data, std::int64_t at, RowType type, float x) {
  switch (type) {
    case RowType::kF16:
      static_cast<__half*>(data)[at] = __float2half(x);
      return;
    case RowType::kBF16:
      static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16(x);
      return;
    default:
      static_cast<float*>(data)[at] = x;
  }
}

// Which two numbers of a row make pair j that RoPE turns.
struct PairPlace {
  int first, second;
};
__device__ __forceinline__ PairPlace pair_place(int j, int pairs, bool neighbours) {
  return neighbours ? PairPlace{2 * j, 2 * j + 1} : PairPlace{j, j + pairs};
}

// A head's keys in a page of full-rank rows, [kRowPageTokens, key_dim]; values follow them. Numbers
// from the beginning of all pages.
__device__ __forceinline__ std::int64_t row_page_at(std::int32_t page, std::int64_t layer_halves,
                                                    int head, int key_dim, int value_dim) {
  return std::int64_t{page} * (kPageUnit / 2) + layer_halves +
         static_cast<std::int64_t>(head) * kRowPageTokens * (key_dim + value_dim);
}

}  // namespace kvspan::cuda
