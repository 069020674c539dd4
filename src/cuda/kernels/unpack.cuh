// SPDX-License-Identifier: Apache-2.0
// Codes of a chunk of 64 places by 32 tokens from packed words (cuda/bands_tiles.h) to operands of
// small matrix products: with tokens as rows for scores, with components as rows for sums.
// A thread (g = lane / 4, c = lane % 4) of a warp reads words that nobody else of it reads, without
// bank conflicts either way. Codes are unsigned.
#pragma once

#include <cstdint>

#include "cuda/bands_tiles.h"

namespace kvspan::cuda {

// Left for positive n, right for negative: a left shift can go to the multipliers, which are idle.
template <int kBy>
__device__ __forceinline__ std::uint32_t shift(std::uint32_t x) {
  if constexpr (kBy >= 0) {
    return x << kBy;
  } else {
    return x >> -kBy;
  }
}

// Byte b of word i becomes byte i of word b.
__device__ __forceinline__ void transpose4(const std::uint32_t (&x)[4], std::uint32_t (&t)[4]) {
  const std::uint32_t a = __byte_perm(x[0], x[1], 0x5140), b = __byte_perm(x[2], x[3], 0x5140);
  const std::uint32_t c = __byte_perm(x[0], x[1], 0x7362), d = __byte_perm(x[2], x[3], 0x7362);
  t[0] = __byte_perm(a, b, 0x5410);
  t[1] = __byte_perm(a, b, 0x7632);
  t[2] = __byte_perm(c, d, 0x5410);
  t[3] = __byte_perm(c, d, 0x7632);
}

// Of the token quad g: words 4 c .. 4 c + 3 of a plane of 16, transposed: t[b] is token b.
__device__ __forceinline__ void read_tokens(const std::uint32_t* plane, int g, int c,
                                            std::uint32_t (&t)[4]) {
  const uint4 v = *reinterpret_cast<const uint4*>(plane + 16 * g + ((4 * c) ^ ((g & 2) << 2)));
  const std::uint32_t x[4] = {v.x, v.y, v.z, v.w};
  transpose4(x, t);
}

// The same of a plane of single bits: 8 words a token quad, a nibble for each quad of places.
__device__ __forceinline__ void read_token_bits(const std::uint32_t* plane, int g, int c,
                                                std::uint32_t (&t)[4]) {
  const uint2 v = *reinterpret_cast<const uint2*>(plane + 8 * g + 2 * c);
  const std::uint32_t x[4] = {v.x & 0x0f0f0f0fu, (v.x >> 4) & 0x0f0f0f0fu, v.y & 0x0f0f0f0fu,
                              (v.y >> 4) & 0x0f0f0f0fu};
  transpose4(x, t);
}

// Scores of widths up to 4 count by kScoreUnit, so that fields need not be moved to the lowest bit.
__host__ __device__ constexpr int score_unit(int width) {
  return width <= 4 ? 16 : 1;
}

// y[f][b]: places 4 (4 c + i) + f in byte i, token 4 g + b, times score_unit.
template <int kWidth>
__device__ __forceinline__ void codes_by_token(const std::uint32_t* chunk, int g, int c,
                                               std::uint32_t (&y)[4][4]) {
  constexpr int kPlane = 128;
  std::uint32_t t[4], more[4], bits[4];
  if constexpr (kWidth == 8) {
#pragma unroll
    for (int f = 0; f < 4; ++f) read_tokens(chunk + f * kPlane, g, c, y[f]);
    return;
  }
  if constexpr (kWidth != 1) read_tokens(chunk, g, c, t);
  if constexpr (kWidth >= 4) read_tokens(chunk + kPlane, g, c, more);
  if constexpr (kWidth == 1) read_token_bits(chunk, g, c, bits);
  if constexpr (kWidth == 3) read_token_bits(chunk + kPlane, g, c, bits);
  if constexpr (kWidth == 5) read_token_bits(chunk + 2 * kPlane, g, c, bits);
  if constexpr (kWidth == 6) read_tokens(chunk + 2 * kPlane, g, c, bits);
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    if constexpr (kWidth == 1) {
      y[0][b] = shift<4>(bits[b]) & 0x10101010u;
      y[1][b] = shift<3>(bits[b]) & 0x10101010u;
      y[2][b] = shift<2>(bits[b]) & 0x10101010u;
      y[3][b] = shift<1>(bits[b]) & 0x10101010u;
    } else if constexpr (kWidth <= 3) {
      y[0][b] = shift<4>(t[b]) & 0x30303030u;
      y[1][b] = shift<2>(t[b]) & 0x30303030u;
      y[2][b] = t[b] & 0x30303030u;
      y[3][b] = shift<-2>(t[b]) & 0x30303030u;
    } else if constexpr (kWidth == 4) {
      y[0][b] = shift<4>(t[b]) & 0xf0f0f0f0u;
      y[1][b] = t[b] & 0xf0f0f0f0u;
      y[2][b] = shift<4>(more[b]) & 0xf0f0f0f0u;
      y[3][b] = more[b] & 0xf0f0f0f0u;
    } else {
      y[0][b] = t[b] & 0x0f0f0f0fu;
      y[1][b] = shift<-4>(t[b]) & 0x0f0f0f0fu;
      y[2][b] = more[b] & 0x0f0f0f0fu;
      y[3][b] = shift<-4>(more[b]) & 0x0f0f0f0fu;
    }
    if constexpr (kWidth == 3) {
      y[0][b] |= shift<6>(bits[b]) & 0x40404040u;
      y[1][b] |= shift<5>(bits[b]) & 0x40404040u;
      y[2][b] |= shift<4>(bits[b]) & 0x40404040u;
      y[3][b] |= shift<3>(bits[b]) & 0x40404040u;
    } else if constexpr (kWidth == 5) {
      y[0][b] |= shift<4>(bits[b]) & 0x10101010u;
      y[1][b] |= shift<3>(bits[b]) & 0x10101010u;
      y[2][b] |= shift<2>(bits[b]) & 0x10101010u;
      y[3][b] |= shift<1>(bits[b]) & 0x10101010u;
    } else if constexpr (kWidth == 6) {
      y[0][b] |= shift<4>(bits[b]) & 0x30303030u;
      y[1][b] |= shift<2>(bits[b]) & 0x30303030u;
      y[2][b] |= bits[b] & 0x30303030u;
      y[3][b] |= shift<-2>(bits[b]) & 0x30303030u;
    }
  }
}

// Of codes of 2 bits alone, at the top of the bytes, times 64: no shift to the right at all.
__device__ __forceinline__ void codes_by_token_2(const std::uint32_t* chunk, int g, int c,
                                                 std::uint32_t (&y)[4][4]) {
  std::uint32_t t[4];
  read_tokens(chunk, g, c, t);
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    y[0][b] = shift<6>(t[b]) & 0xc0c0c0c0u;
    y[1][b] = shift<4>(t[b]) & 0xc0c0c0c0u;
    y[2][b] = shift<2>(t[b]) & 0xc0c0c0c0u;
    y[3][b] = t[b] & 0xc0c0c0c0u;
  }
}

// How far codes of place j of eight lie above the lowest bit in codes_by_place.
__host__ __device__ constexpr int sum_shift(int width, int j) {
  const int f = j % 4;
  return width == 1   ? j
         : width == 2 ? 2 * f
         : width == 3 ? (f == 3 ? 4 : 2 * f)
         : width == 4 ? 4 * (f % 2)
                      : 0;
}

// z[j]: place 8 g + j, tokens 4 quad + b in byte b, times 1 << sum_shift.
template <int kWidth>
__device__ __forceinline__ void codes_by_place(const std::uint32_t* chunk, int g, int quad,
                                               std::uint32_t (&z)[8]) {
  constexpr int kPlane = 128;
  const int at = 16 * quad + ((2 * g) ^ ((quad & 2) << 2));
  const auto pair = [&](int plane) {
    return *reinterpret_cast<const uint2*>(chunk + plane * kPlane + at);
  };
  if constexpr (kWidth == 8) {
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      const uint2 x = pair(f);
      z[f] = x.x;
      z[4 + f] = x.y;
    }
  } else if constexpr (kWidth == 1) {
    const std::uint32_t bits = chunk[8 * quad + g];
#pragma unroll
    for (int j = 0; j < 8; ++j) z[j] = bits & (0x01010101u << j);
  } else if constexpr (kWidth == 2) {
    const uint2 x = pair(0);
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      z[f] = x.x & (0x03030303u << 2 * f);
      z[4 + f] = x.y & (0x03030303u << 2 * f);
    }
  } else if constexpr (kWidth == 3) {
    const uint2 x = pair(0);
    const std::uint32_t bits = chunk[kPlane + 8 * quad + g];
    z[0] = (x.x & 0x03030303u) | (shift<2>(bits) & 0x04040404u);
    z[1] = (x.x & 0x0c0c0c0cu) | (shift<3>(bits) & 0x10101010u);
    z[2] = (x.x & 0x30303030u) | (shift<4>(bits) & 0x40404040u);
    z[3] = (shift<-2>(x.x) & 0x30303030u) | (shift<3>(bits) & 0x40404040u);
    z[4] = (x.y & 0x03030303u) | (shift<-2>(bits) & 0x04040404u);
    z[5] = (x.y & 0x0c0c0c0cu) | (shift<-1>(bits) & 0x10101010u);
    z[6] = (x.y & 0x30303030u) | (bits & 0x40404040u);
    z[7] = (shift<-2>(x.y) & 0x30303030u) | (shift<-1>(bits) & 0x40404040u);
  } else if constexpr (kWidth == 4) {
    const uint2 x = pair(0), more = pair(1);
    z[0] = x.x & 0x0f0f0f0fu;
    z[1] = x.x & 0xf0f0f0f0u;
    z[2] = more.x & 0x0f0f0f0fu;
    z[3] = more.x & 0xf0f0f0f0u;
    z[4] = x.y & 0x0f0f0f0fu;
    z[5] = x.y & 0xf0f0f0f0u;
    z[6] = more.y & 0x0f0f0f0fu;
    z[7] = more.y & 0xf0f0f0f0u;
  } else {
    const uint2 x = pair(0), more = pair(1);
    z[0] = x.x & 0x0f0f0f0fu;
    z[1] = shift<-4>(x.x) & 0x0f0f0f0fu;
    z[2] = more.x & 0x0f0f0f0fu;
    z[3] = shift<-4>(more.x) & 0x0f0f0f0fu;
    z[4] = x.y & 0x0f0f0f0fu;
    z[5] = shift<-4>(x.y) & 0x0f0f0f0fu;
    z[6] = more.y & 0x0f0f0f0fu;
    z[7] = shift<-4>(more.y) & 0x0f0f0f0fu;
    if constexpr (kWidth == 5) {
      const std::uint32_t bits = chunk[2 * kPlane + 8 * quad + g];
      z[0] |= shift<4>(bits) & 0x10101010u;
      z[1] |= shift<3>(bits) & 0x10101010u;
      z[2] |= shift<2>(bits) & 0x10101010u;
      z[3] |= shift<1>(bits) & 0x10101010u;
      z[4] |= bits & 0x10101010u;
      z[5] |= shift<-1>(bits) & 0x10101010u;
      z[6] |= shift<-2>(bits) & 0x10101010u;
      z[7] |= shift<-3>(bits) & 0x10101010u;
    } else {
      const uint2 high = pair(2);
      z[0] |= shift<4>(high.x) & 0x30303030u;
      z[1] |= shift<2>(high.x) & 0x30303030u;
      z[2] |= high.x & 0x30303030u;
      z[3] |= shift<-2>(high.x) & 0x30303030u;
      z[4] |= shift<4>(high.y) & 0x30303030u;
      z[5] |= shift<2>(high.y) & 0x30303030u;
      z[6] |= high.y & 0x30303030u;
      z[7] |= shift<-2>(high.y) & 0x30303030u;
    }
  }
}

}  // namespace kvspan::cuda
