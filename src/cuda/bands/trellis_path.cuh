// SPDX-License-Identifier: Apache-2.0
// The codes of a trellis that are nearest to a token's components, as TrellisEncoder finds them on the
// host (codec/bands/trellis.h), for the tokens of a block: costs of paths forward, a lane for each of the
// 32 states and the four chains of a token at once; the best path back, a thread for each chain; then
// the upper bits of each code alone.
#pragma once

#include <cstdint>

#include "cuda/bands/trellis.cuh"

namespace kvspan::cuda {

// What that needs in shared memory.
struct TrellisWork {
  float* levels;            // [6][64]: what a code of an index stands for, + 1/2
  float* weights;           // [places]: what a squared error counts, a step's square
  std::uint8_t* widths;     // [places / 64], of chunks
  std::uint8_t* last;       // [4 tokens]: the state in which a chain ends
  // [places / 4][4 tokens]. Forward: by state, whether the one before has its fifth bit set. Then: the state
  // before, and from bit 8 on the code's lowest bit.
  std::uint32_t* paths;

  static __host__ __device__ constexpr int bytes(int places, int tokens) {
    return 4 * (kTrellisWidths * kTrellisLevels + places) + places / kChunkPlaces + 4 * tokens;
  }
  __device__ TrellisWork(void* at, std::uint32_t* path_words, int places)
      : levels(static_cast<float*>(at)),
        weights(levels + kTrellisWidths * kTrellisLevels),
        widths(reinterpret_cast<std::uint8_t*>(weights + places)),
        last(widths + places / kChunkPlaces),
        paths(path_words) {}

  // By all threads of a block, before a barrier.
  __device__ void fill(const std::uint8_t* all_levels, const std::uint8_t* chunk_widths,
                       const float* inverse_steps, int places) const {
    for (int i = threadIdx.x; i < kTrellisWidths * kTrellisLevels; i += blockDim.x) {
      levels[i] = static_cast<float>(all_levels[i]) - 127.5f;
    }
    for (int p = threadIdx.x; p < places; p += blockDim.x) {
      const float step = inverse_steps[p] > 0.0f ? 1.0f / inverse_steps[p] : 0.0f;
      weights[p] = step * step;
      if (p % kChunkPlaces == 0) widths[p / kChunkPlaces] = chunk_widths[p / kChunkPlaces];
    }
  }
  __device__ __forceinline__ int width(int quad) const { return widths[quad * 4 / kChunkPlaces]; }
  // Levels of codes of `width` bits after `history`.
  __device__ __forceinline__ const float* after(int width, int history) const {
    return levels + (width - 1) * kTrellisLevels + (history << width & (kTrellisLevels - 1));
  }
};

// Squared distances of four numbers from the nearest of `count` levels, every second one.
__device__ __forceinline__ void nearest(const float* levels, int count, const float (&x)[4],
                                        float (&square)[4]) {
  float best[4];
#pragma unroll
  for (int f = 0; f < 4; ++f) best[f] = fabsf(x[f] - levels[0]);
#pragma unroll 1
  for (int i = 1; i < count; ++i) {
    const float level = levels[2 * i];
#pragma unroll
    for (int f = 0; f < 4; ++f) best[f] = fminf(best[f], fabsf(x[f] - level));
  }
#pragma unroll
  for (int f = 0; f < 4; ++f) square[f] = best[f] * best[f];
}

// c [places][kTokens]: components over their steps. Barriers come before and after.
template <int kTokens>
__device__ void find_paths(const TrellisWork& work, int quads, const float* c) {
  constexpr int kChains = 4 * kTokens;
  const int lane = threadIdx.x & 31, before = lane >> 1, bit = lane & 1;
  for (int t = threadIdx.x >> 5; t < kTokens; t += blockDim.x >> 5) {
    float cost[4];
#pragma unroll
    for (int f = 0; f < 4; ++f) cost[f] = lane == 0 ? 0.0f : 1e30f;
#pragma unroll 1
    for (int q = 0; q < quads; ++q) {
      const int width = work.width(q);
      if (width > kTrellisWidths) continue;
      float x[4], one[4], two[4];
#pragma unroll
      for (int f = 0; f < 4; ++f) x[f] = c[(4 * q + f) * kTokens + t];
      nearest(work.after(width, before) + bit, 1 << (width - 1), x, one);
      if (width == 1) {  // all five earlier bits have a say
        nearest(work.after(width, before | 16) + bit, 1, x, two);
      } else {
#pragma unroll
        for (int f = 0; f < 4; ++f) two[f] = one[f];
      }
#pragma unroll
      for (int f = 0; f < 4; ++f) {
        const float weight = work.weights[4 * q + f];
        one[f] = fmaf(weight, one[f], __shfl_sync(~0u, cost[f], before));
        two[f] = fmaf(weight, two[f], __shfl_sync(~0u, cost[f], before | 16));
        const std::uint32_t second = __ballot_sync(~0u, two[f] < one[f]);
        cost[f] = fminf(one[f], two[f]);
        if (lane == f) work.paths[q * kChains + 4 * t + f] = second;
      }
    }
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      float least = cost[f];
#pragma unroll
      for (int o = 16; o > 0; o /= 2) least = fminf(least, __shfl_xor_sync(~0u, least, o));
      const std::uint32_t found = __ballot_sync(~0u, cost[f] == least);
      if (lane == 0) work.last[4 * t + f] = static_cast<std::uint8_t>(max(__ffs(found), 1) - 1);
    }
  }
  __syncthreads();
  for (int chain = threadIdx.x; chain < kChains; chain += blockDim.x) {
    std::uint32_t state = work.last[chain];
#pragma unroll 4
    for (int q = quads - 1; q >= 0; --q) {
      if (work.width(q) > kTrellisWidths) continue;
      std::uint32_t& step = work.paths[q * kChains + chain];
      const std::uint32_t from = state >> 1 | (step >> state & 1u) << 4;
      step = from | (state & 1u) << 8;
      state = from;
    }
  }
}

// The code of a place on its path, two's complement; x: the component over its step.
template <int kTokens>
__device__ __forceinline__ int code_on_path(const TrellisWork& work, int place, int token, float x) {
  const int width = work.width(place / 4);
  const std::uint32_t step = work.paths[place / 4 * 4 * kTokens + 4 * token + place % 4];
  const float* const levels = work.after(width, static_cast<int>(step & 31u));
  int code = static_cast<int>(step >> 8);
  float best = fabsf(x - levels[code]);
  for (int trial = code + 2; trial < 1 << width; trial += 2) {
    const float off = fabsf(x - levels[trial]);
    if (off < best) best = off, code = trial;
  }
  return code < 1 << (width - 1) ? code : code - (1 << width);
}

}  // namespace kvspan::cuda
