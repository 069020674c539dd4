// SPDX-License-Identifier: Apache-2.0
// Attention over coded tokens, read in place: the two matrix products of a tile.
//
// A team of kTeam warps takes 32 kTeam tokens at a time. Each warp makes the scores of 32 tokens
// from all components, and the weighted sums of 1 / kTeam of the components over all tokens of the
// team; so that sums stay in registers as whole numbers. Teams are independent but for their first
// step.
//
// Scores are products of shifted words of codes with coefficients that make good for what else lies
// in them (cuda/bands/score_units.h). Sums over tokens cannot do so: there neighbouring bytes are
// other tokens, and fields are masked.
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
  // Takes groups that have up to kTeam - 1 chunks fewer, which are then dealt to warps one by one.
  static constexpr bool kSpare = kUniform2 && kTeam == 4, kBlocks = kUniform2 && !kSpare;
  static constexpr int kChains = kRows8 == 1 ? 2 : 1;  // of products that wait for each other
  // Steps that are asked for ahead: as many as fit.
  static constexpr int kStages =
      kRows8 == 4 || (kRows8 == 1 && (kTeam * kChunks > 6 || kTeams > 6)) ? 2 : 3;
  static constexpr int kWeightStride = 8 * kTeam + 4;  // words of a query's weights
  static constexpr int kWeightBytes = kRows * kWeightStride * 4;  // of a team's, of a step
  // Moved queries are copied to shared memory, an anchor ahead; where they are many they are read
  // where they are.
  static constexpr bool kCopyQueries = kRows8 == 1;
  // Chunk k of a warp's own: where widths differ neighbours go to different warps.
  __device__ static constexpr int chunk_of(int rank, int k) {
    return kBlocks ? rank * kChunks + k : k * kTeam + rank;
  }
  // The way back.
  __device__ static constexpr int rank_of(int chunk) {
    return kBlocks ? chunk / kChunks : chunk % kTeam;
  }
  __device__ static constexpr int own_of(int chunk) {
    return kBlocks ? chunk % kChunks : chunk / kTeam;
  }
  static constexpr int kWarpSums = kChunks * 4 * kRows8 * 128;  // words of a warp's sums
  // Blocks of the mean of a step, or steps of a block; places for those of so many steps.
  static constexpr int kStepMeans =
      kTeam * kTileTokens > kMeanBlock ? kTeam * kTileTokens / kMeanBlock : 1;
  static constexpr int kFoldSteps =
      kTeam * kTileTokens < kMeanBlock ? kMeanBlock / (kTeam * kTileTokens) : 1;
  static constexpr int kFoldSlots = kFoldSteps > 1 ? 2 : kStages;
};

// Moved queries of an anchor, from the lane's bytes of the first unit on.
template <class Shape>
struct MovedQueries {
  std::uint32_t copied = 0;
  const std::byte* there = nullptr;
  __device__ __forceinline__ uint4 read(int at) const {
    if constexpr (Shape::kCopyQueries) {
      return load_shared4(copied + static_cast<unsigned>(at));
    } else {
      return *reinterpret_cast<const uint4*>(there + at);
    }
  }
};

// Integer sums of the scores of 32 tokens, by chain: half, queries / 8, fragment.
template <class Shape>
using ScoreSums = int[Shape::kChains][2][Shape::kRows8][4];
// Weighted sums of the codes of a chunk: field, queries / 8, fragment.
template <class Shape>
using ChunkSums = int[4][Shape::kRows8][4];

// Coefficients of 64 bytes for query 8 n + g, the lane's words.
template <class Shape>
__device__ __forceinline__ void load_queries(const MovedQueries<Shape>& moved, int unit,
                                             uint4 (&q)[Shape::kRows8]) {
#pragma unroll
  for (int n = 0; n < Shape::kRows8; ++n) q[n] = moved.read((unit * Shape::kRows + 8 * n) * 64);
}

// Two words of each of the thread's four tokens; kHigh: the unit's words 2 and 3.
template <class Shape, bool kHigh>
__device__ __forceinline__ void score_words(const std::uint32_t (&x)[4], const std::uint32_t (&y)[4],
                                            const uint4 (&q)[Shape::kRows8], ScoreSums<Shape>& sums) {
  constexpr int kChain = kHigh ? Shape::kChains - 1 : 0;
#pragma unroll
  for (int n = 0; n < Shape::kRows8; ++n) {
    const std::uint32_t p = kHigh ? q[n].z : q[n].x, r = kHigh ? q[n].w : q[n].y;
    mma_u8_s8(sums[kChain][0][n], x[0], x[1], y[0], y[1], p, r);
    mma_u8_s8(sums[kChain][1][n], x[2], x[3], y[2], y[3], p, r);
  }
}

// A unit at `unit` in shared memory.
template <class Shape, int kKind>
__device__ __forceinline__ void score_unit(std::uint32_t unit, const UnpackLane& lane,
                                           const uint4 (&q)[Shape::kRows8],
                                           ScoreSums<Shape>& sums) {
  std::uint32_t t[4], x[4], y[4];
  if constexpr (kKind == 2) {
    load_matrices(unit + lane.rows, t);
  } else {
    read_token_bits(unit, lane, t);
  }
#pragma unroll
  for (int b = 0; b < 4; ++b) y[b] = t[b] << kKind;
  score_words<Shape, false>(t, y, q, sums);
#pragma unroll
  for (int b = 0; b < 4; ++b) x[b] = t[b] << (2 * kKind), y[b] = t[b] << (3 * kKind);
  score_words<Shape, true>(x, y, q, sums);
}

// Units first .. first + count - 1, all of one kind. What the next one reads is asked for before this one's
// products.
template <class Shape, int kKind>
__device__ __forceinline__ void score_run(int first, int count, const std::uint32_t* unit_words,
                                          std::uint32_t tile, const MovedQueries<Shape>& moved,
                                          const UnpackLane& lane, ScoreSums<Shape>& sums) {
#pragma unroll(Shape::kRows8 == 1 ? 2 : 1)
  for (int k = first; k < first + count; ++k) {
    uint4 q[Shape::kRows8];
    load_queries<Shape>(moved, k, q);
    score_unit<Shape, kKind>(tile + (unit_words[k] & 0xffffu), lane, q, sums);
  }
}

// Words `kWord` of two units of 2 bits at once.
template <class Shape, int kWord>
__device__ __forceinline__ void score_pair(const std::uint32_t (&t)[2][4],
                                           const uint4 (&q)[2][Shape::kRows8], bool first,
                                           ScoreSums<Shape>& sums) {
  constexpr int kChain = kWord % Shape::kChains;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = t[half][i] << (2 * kWord);
#pragma unroll
    for (int n = 0; n < Shape::kRows8; ++n) {
      const uint4& own = q[kWord / 2][n];
      const std::uint32_t b0 = kWord % 2 == 0 ? own.x : own.z, b1 = kWord % 2 == 0 ? own.y : own.w;
      if (first && kWord < Shape::kChains) {
        mma_u8_s8_first(sums[kChain][half][n], a[0], a[1], a[2], a[3], b0, b1);
      } else {
        mma_u8_s8(sums[kChain][half][n], a[0], a[1], a[2], a[3], b0, b1);
      }
    }
  }
}

template <class Shape>
__device__ __forceinline__ void shift_sums(std::uint32_t by, ScoreSums<Shape>& sums) {
  if (by == 0) return;
#pragma unroll
  for (int i = 0; i < Shape::kChains * 2 * Shape::kRows8 * 4; ++i) {
    sums[i / (8 * Shape::kRows8)][i / (4 * Shape::kRows8) % 2][i / 4 % Shape::kRows8][i % 4] <<= by;
  }
}

// Units k and k + 1, of the chunks of 2 bits from `chunks` on.
template <class Shape>
__device__ __forceinline__ void score_chunks(std::uint32_t chunks, int k, const MovedQueries<Shape>& moved,
                                             const UnpackLane& lane, ScoreSums<Shape>& sums) {
  std::uint32_t t[2][4];  // the first two tokens of a quad from two chunks, and the last two
  load_matrices(chunks + lane.pair_rows, t[0]);
  load_matrices(chunks + lane.pair_rows + 16 * 16, t[1]);
  uint4 q[2][Shape::kRows8];  // words 0 and 1, 2 and 3 of both
  load_queries<Shape>(moved, k, q[0]);
  load_queries<Shape>(moved, k + 1, q[1]);
  score_pair<Shape, 0>(t, q, k == 0, sums);
  score_pair<Shape, 1>(t, q, k == 0, sums);
  score_pair<Shape, 2>(t, q, k == 0, sums);
  score_pair<Shape, 3>(t, q, k == 0, sums);
}

// How much the sums so far are shifted before a unit.
__device__ __forceinline__ std::uint32_t shift_before(std::uint32_t unit_word) {
  return unit_word >> 20 & 15u;
}

// The shifts before each pair of units that all tiles have, four bits each.
template <class Shape>
__device__ __forceinline__ std::uint64_t pair_shifts(const std::uint32_t* unit_words) {
  static_assert(Shape::kTeam * Shape::kChunks <= 32);
  std::uint64_t all = 0;
  if constexpr (Shape::kUniform2) {
#pragma unroll
    for (int k = 2; k < Shape::kTeam * Shape::kChunks; k += 2) {
      all |= static_cast<std::uint64_t>(shift_before(unit_words[k])) << (2 * k);
    }
  }
  return all;
}

// All units of a tile at `tile` in shared memory. unit_words: of the group, in shared memory; shifts: pair_shifts.
template <class Shape>
__device__ __forceinline__ void score_tile(int chunks, int units, const std::uint32_t* unit_words,
                                           std::uint64_t shifts, std::uint32_t tile,
                                           const MovedQueries<Shape>& moved, const UnpackLane& lane,
                                           ScoreSums<Shape>& sums) {
  if constexpr (Shape::kUniform2) {
    constexpr int kMost = Shape::kTeam * Shape::kChunks;
    static_assert(kMost % 2 == 0);
#pragma unroll
    for (int k = 0; k < kMost; k += 2) {
      if (k > 0) shift_sums<Shape>(static_cast<std::uint32_t>(shifts >> 2 * k) & 15u, sums);
      if (Shape::kSpare && k >= chunks) continue;
      score_chunks<Shape>(tile + static_cast<unsigned>(k * kPairBytes), k, moved, lane, sums);
    }
#pragma unroll 1
    for (int k = kMost; k < units; k += 2) {  // what rounding has left of the first
      shift_sums<Shape>(shift_before(unit_words[k]), sums);
      score_chunks<Shape>(tile + static_cast<unsigned>((k - kMost) * kPairBytes), k, moved, lane, sums);
    }
  } else {
#pragma unroll
    for (int i = 0; i < Shape::kChains * 2 * Shape::kRows8 * 4; ++i) {
      sums[i / (8 * Shape::kRows8)][i / (4 * Shape::kRows8) % 2][i / 4 % Shape::kRows8][i % 4] = 0;
    }
#pragma unroll 1
    for (int k = 0; k < units;) {
      const std::uint32_t word = unit_words[k];
      const int count = static_cast<int>(word >> 28);
      shift_sums<Shape>(shift_before(word), sums);
      if ((word >> 16 & 3u) == 2) {
        score_run<Shape, 2>(k, count, unit_words, tile, moved, lane, sums);
      } else {
        score_run<Shape, 1>(k, count, unit_words, tile, moved, lane, sums);
      }
      k += count;
    }
  }
}

// The score of token b and query 8 n + 2 c + e, in whole numbers; off: what is to be added.
template <class Shape>
__device__ __forceinline__ int score_of(const ScoreSums<Shape>& sums, int n, int e, int b, int off) {
  const int half = b / 2, at = b % 2 * 2 + e;
  int sum = sums[0][half][n][at] + off;
  if constexpr (Shape::kChains > 1) sum += sums[1][half][n][at];
  return sum;
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

// One chunk of a tile of 32 tokens, its places as rows, added to the sums.
template <class Shape, int kWidth>
__device__ __forceinline__ void sum_chunk(std::uint32_t chunk, const UnpackLane& lane,
                                          const std::uint32_t (&w)[Shape::kRows8][2],
                                          ChunkSums<Shape>& sums) {
  std::uint32_t x[2 * kWidth], a[4];
  read_places(chunk, lane, x);
  digits_by_place<0>(x, a);
  add_products<Shape>(a, w, sums[0]);
  digits_by_place<1>(x, a);
  add_products<Shape>(a, w, sums[1]);
  digits_by_place<2>(x, a);
  add_products<Shape>(a, w, sums[2]);
  digits_by_place<3>(x, a);
  add_products<Shape>(a, w, sums[3]);
}

// kTiles tiles at once, `tile_bytes` apart.
template <class Shape, int kWidth, int kTiles>
__device__ __forceinline__ void sum_tiles(std::uint32_t chunk, unsigned tile_bytes, const UnpackLane& lane,
                                          const std::uint32_t (&w)[kTiles][Shape::kRows8][2],
                                          ChunkSums<Shape>& sums) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    sum_chunk<Shape, kWidth>(chunk + static_cast<unsigned>(t) * tile_bytes, lane, w[t], sums);
  }
}

}  // namespace kvspan::cuda
