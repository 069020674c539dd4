// SPDX-License-Identifier: Apache-2.0
// Attention over coded tokens, read in place.
//
// A team of kTeam warps takes 32 kTeam tokens at a time. Each warp makes the scores of 32 tokens
// from all components, and the weighted sums of 1 / kTeam of the components over all tokens of the
// team; so that sums stay in registers as whole numbers. Teams are independent until the end: there
// is no barrier of the whole block in the loop, and a team of one warp has none at all.
//
// Weights times gains are rounded to 8 bits of a power of two that follows the largest so far: when
// it grows, sums are shifted. A weight is off by less than 1/254 of that power, up as often as
// down. What bounds it: unpacking (the integer pipe), then memory; docs/guide/cuda.md has the counters.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/attend_call.h"
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/unpack.cuh"

namespace kvspan::cuda {

// Scores of tokens that a query does not see, and the largest score before any was seen: far above
// the former, so that the weight of an unseen token is 0 even then.
inline constexpr float kUnseen = -1e30f, kNothing = -1e29f;
// Parts of a power of two that weights are rounded to: half a unit more is still a byte.
inline constexpr float kWeightUnits = 254.0f;

// kRows8: padded queries of a group / 8. kChunks: chunks whose sums a warp holds. kUniform2: all
// codes have 2 bits.
template <int kRows8_, int kChunks_, int kTeam_, int kTeams_, bool kUniform2_>
struct AttendShape {
  static constexpr int kRows8 = kRows8_, kRows = 8 * kRows8_, kChunks = kChunks_, kTeam = kTeam_;
  static constexpr int kTeams = kTeams_, kThreads = 32 * kTeam_ * kTeams_;
  static constexpr bool kUniform2 = kUniform2_;
  static constexpr int kStages = kTeam == 1 ? 4 : 2;   // of what is asked for ahead
  static constexpr int kWeightStride = 8 * kTeam + 4;  // words of a query's weights
  static constexpr int kUnit = kUniform2 ? 64 : 16;
};

// Where things lie in shared memory.
template <class Shape>
struct AttendMemory {
  int mean_table, rings, weights, maxima, sums, barriers, bytes;
  __host__ __device__ AttendMemory(int mean_terms, int tile_bytes, int places) {
    mean_table = 0;
    rings = mean_terms * kMeanBlock * 2;
    const int ring = Shape::kTeams * Shape::kStages * Shape::kTeam * tile_bytes;
    const int reduce = Shape::kTeams * Shape::kRows * (places + 4) * 4;  // when all is read
    weights = rings + (ring > reduce ? ring : reduce);
    maxima = weights + Shape::kTeams * Shape::kRows * Shape::kWeightStride * 4;
    sums = maxima + Shape::kTeams * Shape::kTeam * Shape::kRows * 4;
    barriers = sums + Shape::kTeams * Shape::kTeam * Shape::kRows * 8;
    bytes = barriers + Shape::kTeams * Shape::kStages * 8;
  }
};

template <int kTeam>
__device__ __forceinline__ void team_barrier(int team) {
  if constexpr (kTeam == 1) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(32 * kTeam) : "memory");
  }
}

// The item and the part of it that a block works on.
__device__ __forceinline__ int find_item(const AttendCall& call, int part) {
  int item = 0;
  while (item + 1 < call.item_count && call.items[item + 1].parts_before <= part) ++item;
  return item;
}

// y times the moved queries, added to the sums of 32 tokens.
template <int kRows8>
__device__ __forceinline__ void add_scores(const std::uint32_t (&y)[4][4], const uint4 (&q)[kRows8],
                                           int (&sums)[2][kRows8][4]) {
#pragma unroll
  for (int n = 0; n < kRows8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mma_u8_s8(sums[half][n], y[0][2 * half], y[0][2 * half + 1], y[1][2 * half],
                y[1][2 * half + 1], q[n].x, q[n].y);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mma_u8_s8(sums[half][n], y[2][2 * half], y[2][2 * half + 1], y[3][2 * half],
                y[3][2 * half + 1], q[n].z, q[n].w);
    }
  }
}

template <class Shape>
__device__ __forceinline__ void load_queries(const std::int8_t* chunk, int g, int c,
                                             uint4 (&q)[Shape::kRows8]) {
#pragma unroll
  for (int n = 0; n < Shape::kRows8; ++n) {
    q[n] = __ldg(reinterpret_cast<const uint4*>(chunk + (8 * n + g) * 64 + 16 * c));
  }
}

// Integer scores of a tile, in units of 1 / kUnit of a moved query's unit.
template <class Shape>
__device__ __forceinline__ void score_tile(const AttendCall& call, int group,
                                           const std::uint32_t* tile, const std::int8_t* moved,
                                           int g, int c, int (&sums)[2][Shape::kRows8][4]) {
  constexpr int kRows8 = Shape::kRows8;
  if constexpr (Shape::kUniform2) {
#pragma unroll
    for (int k = 0; k < Shape::kTeam * Shape::kChunks; ++k) {
      if (Shape::kTeam > 1 && k >= call.chunks) break;
      uint4 q[kRows8];
      load_queries<Shape>(moved + k * Shape::kRows * 64, g, c, q);
      std::uint32_t y[4][4];
      codes_by_token_2(tile + k * chunk_words(2), g, c, y);
      add_scores<kRows8>(y, q, sums);
    }
  } else {
    int wide[2][kRows8][4] = {};
    const std::uint8_t* const widths = call.chunk_widths + group * kMaxChunks;
    const std::int32_t* const offsets = call.chunk_offsets + group * kMaxChunks;
#pragma unroll 1
    for (int k = 0; k < call.chunks; ++k) {
      uint4 q[kRows8];
      load_queries<Shape>(moved + k * Shape::kRows * 64, g, c, q);
      const std::uint32_t* const chunk = tile + __ldg(offsets + k);
      std::uint32_t y[4][4];
      switch (__ldg(widths + k)) {
        case 1:
          codes_by_token<1>(chunk, g, c, y);
          add_scores<kRows8>(y, q, sums);
          break;
        case 2:
          codes_by_token<2>(chunk, g, c, y);
          add_scores<kRows8>(y, q, sums);
          break;
        case 3:
          codes_by_token<3>(chunk, g, c, y);
          add_scores<kRows8>(y, q, sums);
          break;
        case 4:
          codes_by_token<4>(chunk, g, c, y);
          add_scores<kRows8>(y, q, sums);
          break;
        case 5:
          codes_by_token<5>(chunk, g, c, y);
          add_scores<kRows8>(y, q, wide);
          break;
        case 6:
          codes_by_token<6>(chunk, g, c, y);
          add_scores<kRows8>(y, q, wide);
          break;
        default:
          codes_by_token<8>(chunk, g, c, y);
          add_scores<kRows8>(y, q, wide);
          break;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < kRows8; ++n) {
#pragma unroll
        for (int r = 0; r < 4; ++r) sums[half][n][r] += Shape::kUnit * wide[half][n][r];
      }
    }
  }
}

// One chunk of a tile of 32 tokens, its components as rows, added to the sums.
template <class Shape, int kWidth>
__device__ __forceinline__ void sum_chunk(const std::uint32_t* chunk, int g, int c,
                                          const std::uint32_t (&w)[Shape::kRows8][2],
                                          int (&acc)[4][Shape::kRows8][4]) {
  std::uint32_t z0[8], z1[8];
  codes_by_place<kWidth>(chunk, g, c, z0);
  codes_by_place<kWidth>(chunk, g, c + 4, z1);
#pragma unroll
  for (int m = 0; m < 4; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kRows8; ++n) {
      mma_u8_u8(acc[m][n], z0[2 * m], z0[2 * m + 1], z1[2 * m], z1[2 * m + 1], w[n][0], w[n][1]);
    }
  }
}

template <class Shape>
__device__ __forceinline__ void sum_chunk_of(int width, const std::uint32_t* chunk, int g, int c,
                                             const std::uint32_t (&w)[Shape::kRows8][2],
                                             int (&acc)[4][Shape::kRows8][4]) {
  if constexpr (Shape::kUniform2) {
    sum_chunk<Shape, 2>(chunk, g, c, w, acc);
  } else {
    switch (width) {
      case 1:
        return sum_chunk<Shape, 1>(chunk, g, c, w, acc);
      case 2:
        return sum_chunk<Shape, 2>(chunk, g, c, w, acc);
      case 3:
        return sum_chunk<Shape, 3>(chunk, g, c, w, acc);
      case 4:
        return sum_chunk<Shape, 4>(chunk, g, c, w, acc);
      case 5:
        return sum_chunk<Shape, 5>(chunk, g, c, w, acc);
      case 6:
        return sum_chunk<Shape, 6>(chunk, g, c, w, acc);
      default:
        return sum_chunk<Shape, 8>(chunk, g, c, w, acc);
    }
  }
}

// c tanh(x / c), both in units of log 2.
__device__ __forceinline__ float capped(float x, float cap) {
  return cap > 0.0f ? cap * tanhf(x / cap) : x;
}

}  // namespace kvspan::cuda
