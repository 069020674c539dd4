// SPDX-License-Identifier: Apache-2.0
// From scores to rounded weights: what a tile's tokens count, relative to the largest so far.
//
// Weights times gains are rounded to 8 bits of a power of two that follows the largest: when a byte
// overflows it is raised, and sums are shifted. A weight is rounded down after something between 0
// and 1 was added that differs from token to token, so that weights far below the unit count as
// often as they should. Where a team begins it takes the largest of what all teams of its block have
// met, so that few raise theirs later.
#pragma once

#include "cuda/attend_call.h"
#include "cuda/bands/attend_bands.cuh"
#include "cuda/kernels/softmax.cuh"

namespace kvspan::cuda {

template <int kTeam>
__device__ __forceinline__ void team_barrier(int team) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(32 * kTeam) : "memory");
}

// Whether any thread of the team says so; a barrier too.
template <int kTeam>
__device__ __forceinline__ bool any_of_team(int team, bool own) {
  int found;
  asm volatile(
      "{.reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.cta.red.or.pred q, %2, %3, p; selp.u32 %0, "
      "1, 0, q;}"
      : "=r"(found)
      : "r"(static_cast<int>(own)), "r"(team + 1), "n"(32 * kTeam)
      : "memory");
  return found != 0;
}

// What a thread knows of the softmax of its queries 8 n + 2 c and + 1.
template <int kRows8>
struct RunningSoftmax {
  float most[kRows8][2];     // a whole number: scores are relative to it
  float weights[kRows8][2];  // sums over the thread's tokens
  // The same of weights times gains as they were rounded: since `most` was raised, and before.
  std::uint32_t rounded[kRows8][2];
  float rounded_before[kRows8][2];

  __device__ __forceinline__ RunningSoftmax() {
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        most[n][e] = weights[n][e] = rounded_before[n][e] = 0.0f;
        rounded[n][e] = 0;
      }
    }
  }
};

// Gains of the thread's four tokens, times 2^(kWeightBits + kFractionBits). Codes count eighths of a
// power of two: each is put into the middle of a number's bits.
struct TokenGains {
  float log[4], gain[4];
  __device__ __forceinline__ explicit TokenGains(std::uint32_t codes) {
    const std::uint32_t from_lowest = codes ^ 0x80808080u;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      // 128 + code / 256.
      const float x = __uint_as_float(
          __byte_perm(from_lowest, 0x43000000u, static_cast<unsigned>(0x7504 | b << 4)));
      log[b] = fmaf(x, 32.0f, -4096.0f - 16.0f + kWeightBits + kFractionBits);
      gain[b] = exp2_approx(log[b]);
    }
  }
};

// Scales of a thread's queries 8 n + 2 c and + 1, for gains as TokenGains has them, and what is
// added to their sums; of an anchor.
template <int kRows8>
struct QueryScales {
  float scale[kRows8][2];
  int off[kRows8][2];

  template <class Read4>
  __device__ __forceinline__ void load(const Read4& read) {
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
      const uint4 x = read(n * 8 * 8);
      scale[n][0] = __uint_as_float(x.x), scale[n][1] = __uint_as_float(x.z);
      off[n][0] = static_cast<int>(x.y), off[n][1] = static_cast<int>(x.w);
    }
  }
};

// Bits of the tokens of a tile that lie in `coded`.
__device__ __forceinline__ std::uint32_t seen_tokens(const Range& coded, int tile) {
  const int first = tile * kTileTokens;
  std::uint32_t bits = ~0u;
  if (first < coded.first) {
    bits = first + kTileTokens <= coded.first ? 0u : bits & (~0u << (coded.first - first));
  }
  if (first + kTileTokens > coded.last) {
    bits = first >= coded.last ? 0u : bits & (~0u >> (first + kTileTokens - coded.last));
  }
  return bits;
}

// What a step's scores read beside codes: addresses in shared memory, of the lane. Of the mean's table those of
// the tile's upper tokens lie `upper` bytes behind those of its lower ones.
struct MeanPlaces {
  std::uint32_t folded, constants, table, upper;
};

// Scores of the thread's four tokens for each of its queries, relative to the largest so far: v[n][e][b].
template <class Shape>
__device__ __forceinline__ void finish_scores(const AttendCall& call,
                                              const QueryScales<Shape::kRows8>& scales,
                                              const RunningSoftmax<Shape::kRows8>& state,
                                              const MeanPlaces& at, const TokenGains& gains,
                                              const ScoreSums<Shape>& sums,
                                              float (&v)[Shape::kRows8][2][4]) {
  constexpr int kRows8 = Shape::kRows8, kFirstSteps = kLeastMeanTerms / 16;
  float mean[2][kRows8][4];
  const int steps = call.mean_terms / 16;
#pragma unroll
  for (int s = 0; s < kFirstSteps; ++s) {
    const uint4 low = load_constant4(at.table + 512u * s), high = load_constant4(at.table + at.upper + 512u * s);
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
      const uint2 q = load_shared2(at.folded + static_cast<unsigned>((n * steps + s) * 256));
      if (s == 0) {
        const uint2 both = load_shared2(at.constants + 32u * n);
        const float x = __uint_as_float(both.x) - state.most[n][0];
        const float y = __uint_as_float(both.y) - state.most[n][1];
        mma_f16_from(mean[0][n], low, q, x, y);
        mma_f16_from(mean[1][n], high, q, x, y);
      } else {
        mma_f16(mean[0][n], low, q);
        mma_f16(mean[1][n], high, q);
      }
    }
  }
#pragma unroll 1
  for (int s = kFirstSteps; s < steps; ++s) {
    const std::uint32_t table = at.table + 512u * static_cast<unsigned>(s);
    const uint4 low = load_constant4(table), high = load_constant4(table + at.upper);
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
      const uint2 q = load_shared2(at.folded + static_cast<unsigned>((n * steps + s) * 256));
      mma_f16(mean[0][n], low, q);
      mma_f16(mean[1][n], high, q);
    }
  }
#pragma unroll
  for (int n = 0; n < kRows8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const auto sum = static_cast<float>(score_of<Shape>(sums, n, e, b, scales.off[n][e]));
        v[n][e][b] = fmaf(sum, scales.scale[n][e] * gains.gain[b], mean[b / 2][n][b % 2 * 2 + e]);
      }
    }
  }
}

// What few tiles or layers need: scores capped, and tokens that are not seen.
template <class Shape>
__device__ __forceinline__ void cap_and_mask(float soft_cap, std::uint32_t seen, int g,
                                             const RunningSoftmax<Shape::kRows8>& state,
                                             float (&v)[Shape::kRows8][2][4]) {
#pragma unroll
  for (int n = 0; n < Shape::kRows8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        if (soft_cap > 0.0f) {
          v[n][e][b] = capped(v[n][e][b] + state.most[n][e], soft_cap) - state.most[n][e];
        }
        if ((seen >> token_at(g, b) & 1u) == 0) v[n][e][b] = kUnseen;
      }
    }
  }
}

// Of eight tokens, each time one of which a thread meets four: times their number.
inline constexpr std::uint32_t kGoldenRatio = 2654435769u;

// Weights of the thread's four tokens: their sums, and rounded with their gains as bytes of a word,
// which go to `to`, of query 2 c, in shared memory. spread: of the tile and thread. Whether one is too large for a
// byte: then nothing of it counts.
template <class Shape>
__device__ __forceinline__ bool weigh(const float (&v)[Shape::kRows8][2][4], const TokenGains& gains,
                                      std::uint32_t spread, float (&added)[Shape::kRows8][2],
                                      std::uint32_t (&rounded)[Shape::kRows8][2],
                                      std::uint32_t to) {
  // What is added before rounding, in 256ths of a unit: multiples of the golden ratio, spread evenly
  // over tokens. A weight has 8 bits after the point in the lowest bits of 1.5 x 2^23 and itself.
  constexpr std::uint32_t kUnitsOf = 0x4b400000u;
  std::uint32_t all = 0;
  float offset[4];
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    offset[b] =
        __uint_as_float(__byte_perm(spread, kUnitsOf, static_cast<unsigned>(0x7640 | b)));
  }
#pragma unroll
  for (int n = 0; n < Shape::kRows8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      std::uint32_t byte[4];
      float w[4];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        w[b] = exp2_approx(v[n][e][b]);
        byte[b] = __float_as_uint(fmaf(w[b], gains.gain[b], offset[b]));
        all |= byte[b];
      }
      added[n][e] = (w[0] + w[1]) + (w[2] + w[3]);
      rounded[n][e] = __byte_perm(__byte_perm(byte[0], byte[1], 0x0051),
                                  __byte_perm(byte[2], byte[3], 0x0051), 0x5410);
      store_shared(to + static_cast<unsigned>((8 * n + e) * Shape::kWeightStride * 4), rounded[n][e]);
    }
  }
  return all >> 16 != kUnitsOf >> 16;
}

// The largest scores that warps have met, in shared memory: [3][warps][queries], for the first step
// of all teams and, by turns, for a team that raises its own.
template <class Shape>
struct TeamMaxima {
  float* all;
  int team, rank;

  // For a team without steps.
  __device__ __forceinline__ void share_nothing(int g, int c) const {
    float nothing[Shape::kRows8][2];
#pragma unroll
    for (int n = 0; n < Shape::kRows8; ++n) nothing[n][0] = nothing[n][1] = kUnseen;
    write(all, g, c, nothing);
    __syncthreads();
  }

  // A larger power of two for weights, so that all scores of this step fit; what was summed before
  // counts as much as it did. raises: how often this was called before.
  __device__ __forceinline__ void raise(bool first, int raises, int g, int c, const TokenGains& gains,
                                        float (&v)[Shape::kRows8][2][4],
                                        RunningSoftmax<Shape::kRows8>& state,
                                        ChunkSums<Shape> (&acc)[Shape::kChunks]) const {
    constexpr int kRows = Shape::kRows;
    float most[Shape::kRows8][2];
#pragma unroll
    for (int n = 0; n < Shape::kRows8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        most[n][e] = fmaxf(fmaxf(v[n][e][0] + gains.log[0], v[n][e][1] + gains.log[1]),
                           fmaxf(v[n][e][2] + gains.log[2], v[n][e][3] + gains.log[3]));
#pragma unroll
        for (int o = 4; o < 32; o *= 2) {
          most[n][e] = fmaxf(most[n][e], __shfl_xor_sync(~0u, most[n][e], o));
        }
      }
    }
    int from = 0, count = Shape::kWarps;
    float* slots = all;
    if (first) {
      write(slots, g, c, most);
      __syncthreads();
    } else {
      slots += (1 + raises % 2) * Shape::kWarps * kRows;
      write(slots, g, c, most);
      team_barrier<Shape::kTeam>(team);
      from = team * Shape::kTeam, count = Shape::kTeam;
    }
#pragma unroll
    for (int n = 0; n < Shape::kRows8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll 1
        for (int w = 0; w < count; ++w) {
          most[n][e] = fmaxf(most[n][e], slots[(from + w) * kRows + 8 * n + 2 * c + e]);
        }
        float by = ceilf(most[n][e] - (kWeightBits + kFractionBits));
        if (!first) by = fmaxf(by, 0.0f);
        state.most[n][e] += by;
#pragma unroll
        for (int b = 0; b < 4; ++b) v[n][e][b] -= by;
        if (first) continue;  // nothing was summed
        const float factor = exp2_approx(-by);
        state.weights[n][e] *= factor;
        // Not shifted as sums are: what every thread would lose of its own is too much.
        state.rounded_before[n][e] =
            (state.rounded_before[n][e] + static_cast<float>(state.rounded[n][e])) * factor;
        state.rounded[n][e] = 0;
        const int shift = static_cast<int>(fminf(by, 31.0f));
        if (!__any_sync(~0u, shift > 0)) continue;
#pragma unroll
        for (int k = 0; k < Shape::kChunks; ++k) {
#pragma unroll
          for (int f = 0; f < 4; ++f) {
            acc[k][f][n][e] >>= shift;
            acc[k][f][n][e + 2] >>= shift;
          }
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void write(float* slots, int g, int c,
                                        const float (&most)[Shape::kRows8][2]) const {
    if (g != 0) return;
#pragma unroll
    for (int n = 0; n < Shape::kRows8; ++n) {
      float* const to = slots + (team * Shape::kTeam + rank) * Shape::kRows + 8 * n + 2 * c;
      to[0] = most[n][0], to[1] = most[n][1];
    }
  }
};

}  // namespace kvspan::cuda
