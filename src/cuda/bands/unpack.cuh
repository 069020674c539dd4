// SPDX-License-Identifier: Apache-2.0
// Digits of a chunk of 64 places by 32 tokens as they are packed (cuda/bands/bands_tiles.h) to
// operands of small matrix products: with tokens as rows for scores, with places as rows for sums.
// With g = lane / 4 and c = lane % 4 a thread meets tokens token_at(g, 0..3) as rows, and places
// 8 g .. 8 g + 7 as rows. In the latter fields are masked where they lie: products count by powers
// of two, which are made good once for a part. What this costs is what limits attention: the pipe
// of logical operations takes half an instruction a cycle.
#pragma once

#include <cstdint>

#include "cuda/bands/bands_tiles.h"
#include "cuda/kernels/mma.cuh"

namespace kvspan::cuda {

inline constexpr int kPairBytes = 16 * kTileTokens;  // of a chunk of digits of 2 bits

// Left for positive n, right for negative: a left shift can go to the multipliers, which are idle.
template <int kBy>
__device__ __forceinline__ std::uint32_t shift(std::uint32_t x) {
  if constexpr (kBy >= 0) {
    return x << kBy;
  } else {
    return x >> -kBy;
  }
}

// kBits bits of each byte, moved from bit kFrom to bit kTo.
template <int kBits, int kFrom, int kTo>
__device__ __forceinline__ std::uint32_t field(std::uint32_t x) {
  constexpr std::uint32_t kMask = (((1u << kBits) - 1u) << kTo) * 0x01010101u;
  return shift<kTo - kFrom>(x) & kMask;
}

// x, which the compiler holds from now on instead of working it out again where it is used.
__device__ __forceinline__ std::uint32_t held(std::uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Where a lane reads, in bytes from a chunk's beginning.
struct UnpackLane {
  std::uint32_t rows, columns;       // of ldmatrix, as it is and transposed
  std::uint32_t pair_rows;           // of two chunks, the first two tokens of a quad from each
  std::uint32_t bits, column_bits;   // of chunks of single bits
  std::uint32_t bit_bytes;           // which bytes of two words are the lane's places
  __device__ __forceinline__ explicit UnpackLane(int lane) {
    const int matrix = lane / 8, row = lane % 8, g = lane / 4, c = lane % 4;
    rows = 16u * static_cast<unsigned>(token_at(row, matrix));
    columns = 16u * static_cast<unsigned>(
                        token_at(4 * (matrix / 2) + row / 2, 2 * (matrix % 2) + row % 2));
    rows = held(rows), columns = held(columns);
    pair_rows = held(static_cast<unsigned>(16 * kTileTokens * (matrix / 2)) +
                     16u * static_cast<unsigned>(token_at(row, matrix % 2)));
    bits = 8u * static_cast<unsigned>(lane);
    column_bits = 8u * static_cast<unsigned>(4 * c + g / 2);
    bit_bytes = g % 2 == 0 ? 0x6420u : 0x7531u;
  }
};

// Single bits with tokens as rows: what spread_bits makes of the lane's 16 bits of token b.
__device__ __forceinline__ void read_token_bits(std::uint32_t chunk, const UnpackLane& lane,
                                                std::uint32_t (&t)[4]) {
  const uint2 x = load_shared2(chunk + lane.bits);
  const std::uint32_t low = x.x << 4 & 0xfff0fff0u, high = x.y << 4 & 0xfff0fff0u;
  t[0] = __byte_perm(x.x, low, 0x5410);
  t[1] = __byte_perm(x.x, low, 0x7632);
  t[2] = __byte_perm(x.y, high, 0x5410);
  t[3] = __byte_perm(x.y, high, 0x7632);
}

// Digits of 2 bits with places as rows: x[0] byte 2 g and x[1] byte 2 g + 1 of tokens token_at(c, 0..3),
// x[2] and x[3] of token_at(c + 4, 0..3).
__device__ __forceinline__ void read_places(std::uint32_t chunk, const UnpackLane& lane,
                                            std::uint32_t (&x)[4]) {
  std::uint32_t t[4];
  load_transposed(chunk + lane.columns, t);
  x[0] = __byte_perm(t[0], t[1], 0x6420);
  x[1] = __byte_perm(t[0], t[1], 0x7531);
  x[2] = __byte_perm(t[2], t[3], 0x6420);
  x[3] = __byte_perm(t[2], t[3], 0x7531);
}

// The same of single bits: bit 2 f + e is place 8 g + 4 e + f; of tokens token_at(c, 0..3) and
// token_at(c + 4, 0..3).
__device__ __forceinline__ void read_places(std::uint32_t chunk, const UnpackLane& lane,
                                            std::uint32_t (&z)[2]) {
  const uint2 x = load_shared2(chunk + lane.column_bits);
  const uint2 y = load_shared2(chunk + lane.column_bits + 128);
  z[0] = __byte_perm(x.x, x.y, lane.bit_bytes);
  z[1] = __byte_perm(y.x, y.y, lane.bit_bytes);
}

// How far the digit of place 4 e + f of eight lies above the lowest bit in the operands below.
__host__ __device__ constexpr int sum_shift(int width, int e, int f) {
  return width == 1 ? 2 * f + e : 2 * f;
}

// Operands with places 8 g + f (first and third register) and 8 g + 4 + f as rows. Digits of 2 bits carry
// those of the fields below: differences of sums make that good.
template <int kField>
__device__ __forceinline__ void digits_by_place(const std::uint32_t (&x)[4], std::uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = kField == 3 ? x[i] : field<2 * kField + 2, 0, 0>(x[i]);
}
// Single bits.
template <int kField>
__device__ __forceinline__ void digits_by_place(const std::uint32_t (&z)[2], std::uint32_t (&a)[4]) {
  constexpr int f = kField;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    a[i] = i % 2 == 0 ? field<1, 2 * f, 2 * f>(z[i / 2]) : field<1, 2 * f + 1, 2 * f + 1>(z[i / 2]);
  }
}

}  // namespace kvspan::cuda
