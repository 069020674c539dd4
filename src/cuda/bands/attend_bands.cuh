// SPDX-License-Identifier: Apache-2.0
// Attention over coded tokens, read in place: the two matrix products of a tile.
//
// A team of kTeam warps takes 32 kTeam tokens at a time. Each warp makes the scores of 32 tokens
// from all components, and the weighted sums of 1 / kTeam of the components over all tokens of the
// team; so that sums stay in registers as whole numbers. Teams are independent until the end.
//
// Scores of codes whose fields lie at different bits are summed apart (kClasses), so that no field
// has to be moved; where queries are many there are not registers enough for that, and fields are
// moved to the lowest bit.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/attend_call.h"
#include "cuda/bands/unpack.cuh"
#include "cuda/kernels/mma.cuh"

namespace kvspan::cuda {

// kRows8: padded queries of a group / 8. kChunks: chunks whose sums a warp holds. kUniform2: all
// codes have 2 bits.
template <int kRows8_, int kChunks_, int kTeam_, int kTeams_, bool kUniform2_>
struct AttendShape {
  static constexpr int kRows8 = kRows8_, kRows = 8 * kRows8_, kChunks = kChunks_, kTeam = kTeam_;
  static constexpr int kTeams = kTeams_, kWarps = kTeam_ * kTeams_, kThreads = 32 * kWarps;
  static constexpr bool kUniform2 = kUniform2_;
  static constexpr int kClasses = kRows8 == 1 ? 4 : 1;
  static constexpr int kStages = 3;                    // of what is asked for ahead
  static constexpr int kWeightStride = 8 * kTeam + 4;  // words of a query's weights
};

// Integer sums of the scores of 32 tokens, by class: half, queries / 8, fragment.
template <class Shape>
using ScoreSums = int[Shape::kClasses][2][Shape::kRows8][4];
// Weighted sums of the codes of a chunk: field, queries / 8, fragment.
template <class Shape>
using ChunkSums = int[4][Shape::kRows8][4];

template <class Shape>
__device__ __forceinline__ void load_queries(const std::int8_t* chunk, int g, int c,
                                             std::uint32_t (&q)[Shape::kRows8][4]) {
#pragma unroll
  for (int n = 0; n < Shape::kRows8; ++n) {
    const uint4 x = *reinterpret_cast<const uint4*>(chunk + (8 * n + g) * 64 + 16 * c);
    q[n][0] = x.x, q[n][1] = x.y, q[n][2] = x.z, q[n][3] = x.w;
  }
}

// Where fields of a plane go: with one class to the lowest bit, otherwise they stay if they can.
// kWeight: bits below them that another plane has.
template <class Shape, int kFrom, int kWeight>
struct FieldPlace {
  static constexpr bool kOne = Shape::kClasses == 1;
  static constexpr int kTo = kOne ? kWeight : kFrom >= kWeight ? kFrom : kFrom + kWeight;
  static constexpr int kClass = kOne ? 0 : (kTo - kWeight) / 2;
};

// Fields of one plane, t[b] being bytes of token b of the thread's quad.
template <class Shape, int kBits, int kFrom, int kWeight>
__device__ __forceinline__ void score_field(const std::uint32_t (&t)[4], int query_field,
                                            const std::uint32_t (&q)[Shape::kRows8][4],
                                            ScoreSums<Shape>& sums) {
  using Place = FieldPlace<Shape, kFrom, kWeight>;
  std::uint32_t y[4];
#pragma unroll
  for (int b = 0; b < 4; ++b) y[b] = field<kBits, kFrom, Place::kTo>(t[b]);
#pragma unroll
  for (int n = 0; n < Shape::kRows8; ++n) {
    mma_u8_s8_short(sums[Place::kClass][0][n], y[0], y[1], q[n][query_field]);
    mma_u8_s8_short(sums[Place::kClass][1][n], y[2], y[3], q[n][query_field]);
  }
}

// Two chunks of 2 bits. first: of their tile.
template <class Shape, int kField>
__device__ __forceinline__ void score_two(const std::uint32_t (&t)[4], const std::uint32_t (&u)[4],
                                          const std::uint32_t (&p)[Shape::kRows8][4],
                                          const std::uint32_t (&q)[Shape::kRows8][4], bool first,
                                          ScoreSums<Shape>& sums) {
  using Place = FieldPlace<Shape, 2 * kField, 0>;
  std::uint32_t y[4], z[4];
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    y[b] = field<2, 2 * kField, Place::kTo>(t[b]);
    z[b] = field<2, 2 * kField, Place::kTo>(u[b]);
  }
#pragma unroll
  for (int n = 0; n < Shape::kRows8; ++n) {
    auto& low = sums[Place::kClass][0][n];
    auto& high = sums[Place::kClass][1][n];
    if (first && (Shape::kClasses > 1 || kField == 0)) {
      mma_u8_s8_first(low, y[0], y[1], z[0], z[1], p[n][kField], q[n][kField]);
      mma_u8_s8_first(high, y[2], y[3], z[2], z[3], p[n][kField], q[n][kField]);
    } else {
      mma_u8_s8(low, y[0], y[1], z[0], z[1], p[n][kField], q[n][kField]);
      mma_u8_s8(high, y[2], y[3], z[2], z[3], p[n][kField], q[n][kField]);
    }
  }
}

template <class Shape, int kWidth>
__device__ __forceinline__ void score_chunk(std::uint32_t chunk, const UnpackLane& lane,
                                            const std::uint32_t (&q)[Shape::kRows8][4],
                                            ScoreSums<Shape>& sums) {
  std::uint32_t t[4];
  if constexpr (kWidth == 2 || kWidth == 3) {
    load_matrices(chunk + lane.rows, t);
    score_field<Shape, 2, 0, 0>(t, 0, q, sums);
    score_field<Shape, 2, 2, 0>(t, 1, q, sums);
    score_field<Shape, 2, 4, 0>(t, 2, q, sums);
    score_field<Shape, 2, 6, 0>(t, 3, q, sums);
  } else if constexpr (kWidth >= 4 && kWidth <= 6) {
    load_matrices(chunk + lane.rows, t);
    score_field<Shape, 4, 0, 0>(t, 0, q, sums);
    score_field<Shape, 4, 4, 0>(t, 1, q, sums);
    load_matrices(chunk + kPlaneBytes + lane.rows, t);
    score_field<Shape, 4, 0, 0>(t, 2, q, sums);
    score_field<Shape, 4, 4, 0>(t, 3, q, sums);
  } else if constexpr (kWidth == 8) {
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      load_matrices(chunk + static_cast<unsigned>(f * kPlaneBytes) + lane.rows, t);
      score_field<Shape, 8, 0, 0>(t, f, q, sums);
    }
  }
  if constexpr (kWidth == 1 || kWidth == 3 || kWidth == 5) {
    read_token_bits(chunk + kWidth / 2 * kPlaneBytes, lane, t);
    score_field<Shape, 1, 0, kWidth - 1>(t, 0, q, sums);
    score_field<Shape, 1, 2, kWidth - 1>(t, 1, q, sums);
    score_field<Shape, 1, 4, kWidth - 1>(t, 2, q, sums);
    score_field<Shape, 1, 6, kWidth - 1>(t, 3, q, sums);
  } else if constexpr (kWidth == 6) {
    load_matrices(chunk + 2 * kPlaneBytes + lane.rows, t);
    score_field<Shape, 2, 0, 4>(t, 0, q, sums);
    score_field<Shape, 2, 2, 4>(t, 1, q, sums);
    score_field<Shape, 2, 4, 4>(t, 2, q, sums);
    score_field<Shape, 2, 6, 4>(t, 3, q, sums);
  }
}

// All chunks of a tile at `tile` in shared memory.
template <class Shape>
__device__ __forceinline__ void score_tile(const AttendCall& call, int group, std::uint32_t tile,
                                           const std::int8_t* moved, const UnpackLane& lane, int g,
                                           int c, ScoreSums<Shape>& sums) {
  constexpr int kQueryBytes = Shape::kRows * 64;
  std::uint32_t p[Shape::kRows8][4];
  if constexpr (Shape::kUniform2) {
    constexpr int kMost = Shape::kTeam * Shape::kChunks;  // exactly so many (find_variant)
    static_assert(kMost % 2 == 0);
#pragma unroll
    for (int k = 0; k < kMost; k += 2) {
      std::uint32_t t[4], u[4], q[Shape::kRows8][4];
      const std::uint32_t chunk = tile + static_cast<unsigned>(k * kPlaneBytes) + lane.rows;
      load_matrices(chunk, t);
      load_queries<Shape>(moved + k * kQueryBytes, g, c, p);
      load_matrices(chunk + kPlaneBytes, u);
      load_queries<Shape>(moved + (k + 1) * kQueryBytes, g, c, q);
      score_two<Shape, 0>(t, u, p, q, k == 0, sums);
      score_two<Shape, 1>(t, u, p, q, k == 0, sums);
      score_two<Shape, 2>(t, u, p, q, k == 0, sums);
      score_two<Shape, 3>(t, u, p, q, k == 0, sums);
    }
  } else {
#pragma unroll
    for (int i = 0; i < Shape::kClasses * 2 * Shape::kRows8 * 4; ++i) {
      sums[i / (8 * Shape::kRows8)][i / (4 * Shape::kRows8) % 2][i / 4 % Shape::kRows8][i % 4] = 0;
    }
    const std::uint8_t* const widths = call.chunk_widths + group * kMaxChunks;
    std::uint32_t chunk = tile;
#pragma unroll 1
    for (int k = 0; k < call.chunks; ++k) {
      load_queries<Shape>(moved + k * kQueryBytes, g, c, p);
      const int width = __ldg(widths + k);
      switch (width) {
        case 1:
          score_chunk<Shape, 1>(chunk, lane, p, sums);
          break;
        case 2:
          score_chunk<Shape, 2>(chunk, lane, p, sums);
          break;
        case 3:
          score_chunk<Shape, 3>(chunk, lane, p, sums);
          break;
        case 4:
          score_chunk<Shape, 4>(chunk, lane, p, sums);
          break;
        case 5:
          score_chunk<Shape, 5>(chunk, lane, p, sums);
          break;
        case 6:
          score_chunk<Shape, 6>(chunk, lane, p, sums);
          break;
        default:
          score_chunk<Shape, 8>(chunk, lane, p, sums);
          break;
      }
      chunk += static_cast<unsigned>(4 * chunk_words(width));
    }
  }
}

// The score of token b and query 8 n + 2 c + e, as a number; `levels`: sum of (2^w - 1) q.
template <class Shape>
__device__ __forceinline__ float score_of(const ScoreSums<Shape>& sums, int n, int e, int b,
                                          int levels) {
  const int half = b / 2, at = b % 2 * 2 + e;
  if constexpr (Shape::kClasses == 1) {
    return static_cast<float>(2 * sums[0][half][n][at] - levels) * 0.5f;
  } else if constexpr (Shape::kUniform2) {
    // At most 512 places of 3 times 127, 64 times.
    int sum = sums[3][half][n][at] + 4 * sums[2][half][n][at];
    sum += 16 * sums[1][half][n][at];
    sum += 64 * sums[0][half][n][at];
    return static_cast<float>(sum - 32 * levels) * (1.0f / 64.0f);
  } else {
    const int low = sums[3][half][n][at] + 4 * sums[2][half][n][at];
    const int high = sums[1][half][n][at] + 4 * sums[0][half][n][at] - 2 * levels;
    return fmaf(static_cast<float>(high), 0.25f, static_cast<float>(low) * (1.0f / 64.0f));
  }
}

template <class Shape>
__device__ __forceinline__ void add_products(const std::uint32_t (&a)[4],
                                             const std::uint32_t (&w)[Shape::kRows8][2],
                                             int (&sums)[Shape::kRows8][4]) {
#pragma unroll
  for (int n = 0; n < Shape::kRows8; ++n) {
    mma_u8_u8(sums[n], a[0], a[1], a[2], a[3], w[n][0], w[n][1]);
  }
}

template <class Shape, int kWidth>
__device__ __forceinline__ void sum_field_pair(const std::uint32_t (&x)[4],
                                               const std::uint32_t (&z)[2],
                                               const std::uint32_t (&high)[4],
                                               const std::uint32_t (&w)[Shape::kRows8][2],
                                               int pair, ChunkSums<Shape>& sums) {
  std::uint32_t a[4];
  if (pair == 0) {
    codes_by_place<kWidth, 0>(x, z, high, a);
    add_products<Shape>(a, w, sums[0]);
    codes_by_place<kWidth, 1>(x, z, high, a);
    add_products<Shape>(a, w, sums[1]);
  } else {
    codes_by_place<kWidth, 2>(x, z, high, a);
    add_products<Shape>(a, w, sums[2]);
    codes_by_place<kWidth, 3>(x, z, high, a);
    add_products<Shape>(a, w, sums[3]);
  }
}

// One chunk of a tile of 32 tokens, its places as rows, added to the sums.
template <class Shape, int kWidth>
__device__ __forceinline__ void sum_chunk(std::uint32_t chunk, const UnpackLane& lane,
                                          const std::uint32_t (&w)[Shape::kRows8][2],
                                          ChunkSums<Shape>& sums) {
  std::uint32_t x[4] = {}, z[2] = {}, high[4] = {};
  if constexpr (kWidth % 2 == 1) read_place_bits(chunk + kWidth / 2 * kPlaneBytes, lane, z);
  if constexpr (kWidth == 6) read_places(chunk + 2 * kPlaneBytes, lane, high);
  if constexpr (kWidth == 8) {
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      read_places(chunk + static_cast<unsigned>(f * kPlaneBytes), lane, x);
      add_products<Shape>(x, w, sums[f]);
    }
  } else {
    if constexpr (kWidth > 1) read_places(chunk, lane, x);
    sum_field_pair<Shape, kWidth>(x, z, high, w, 0, sums);
    if constexpr (kWidth >= 4) read_places(chunk + kPlaneBytes, lane, x);
    sum_field_pair<Shape, kWidth>(x, z, high, w, 1, sums);
  }
}

// Codes of 2 bits, each with those below it (codes_below).
template <class Shape>
__device__ __forceinline__ void sum_chunk_2(std::uint32_t chunk, const UnpackLane& lane,
                                            const std::uint32_t (&w)[Shape::kRows8][2],
                                            ChunkSums<Shape>& sums) {
  std::uint32_t x[4], a[4];
  read_places(chunk, lane, x);
  codes_below<0>(x, a);
  add_products<Shape>(a, w, sums[0]);
  codes_below<1>(x, a);
  add_products<Shape>(a, w, sums[1]);
  codes_below<2>(x, a);
  add_products<Shape>(a, w, sums[2]);
  codes_below<3>(x, a);
  add_products<Shape>(a, w, sums[3]);
}

template <class Shape>
__device__ __forceinline__ void sum_chunk_of(int width, std::uint32_t chunk, const UnpackLane& lane,
                                             const std::uint32_t (&w)[Shape::kRows8][2],
                                             ChunkSums<Shape>& sums) {
  switch (width) {
    case 1:
      return sum_chunk<Shape, 1>(chunk, lane, w, sums);
    case 2:
      return sum_chunk<Shape, 2>(chunk, lane, w, sums);
    case 3:
      return sum_chunk<Shape, 3>(chunk, lane, w, sums);
    case 4:
      return sum_chunk<Shape, 4>(chunk, lane, w, sums);
    case 5:
      return sum_chunk<Shape, 5>(chunk, lane, w, sums);
    case 6:
      return sum_chunk<Shape, 6>(chunk, lane, w, sums);
    default:
      return sum_chunk<Shape, 8>(chunk, lane, w, sums);
  }
}

// Sums of the eight places 8 g .. of a chunk and query 8 n + 2 c + e as numbers of codes.
template <class Shape>
__device__ __forceinline__ void numbers_of(const ChunkSums<Shape>& sums, int width, int n, int e,
                                           float (&x)[8]) {
#pragma unroll
  for (int f = 0; f < 4; ++f) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int sum = sums[f][n][2 * i + e];
      if (Shape::kUniform2 && f > 0) sum -= sums[f - 1][n][2 * i + e];
      const float unit = __int_as_float((127 - sum_shift(width, i, f)) << 23);
      x[4 * i + f] = static_cast<float>(sum) * unit;
    }
  }
}

}  // namespace kvspan::cuda
