// SPDX-License-Identifier: Apache-2.0
// What queries make of the mean of keys: for each block of kMeanBlock positions the sums of
// cache/bands/anchored_means.h, in f16 and in the order of a matrix operand; what is equal for all
// positions of a block stays in f32. A warp takes one query head and kBlocks blocks, some for each
// thread, and either the pairs that are met alone or the slow ones.
#pragma once

#include <cuda_fp16.h>

#include "cuda/bands/prepare_memory.cuh"
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/rows.cuh"

namespace kvspan::cuda {

// Word of the pair of numbers k, k + 1 (k even) as an operand of steps of 16 has them:
// [step][4 threads][2].
__device__ __forceinline__ int folded_word(int k) {
  return k / 16 * 8 + k % 8 / 2 * 2 + k % 16 / 8;
}

__device__ __forceinline__ std::uint32_t halves(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

// u . Rot mu = Re(conj(mu) u) cos + Im(conj(mu) u) sin: a warp for query n.
__device__ __forceinline__ void multiply_means(const AttendCall& call, const HeadTile& tile, int n,
                                               const FoldMemory& memory, char* shared) {
  const int lane = threadIdx.x & 31, pairs = call.rope_pairs;
  const std::int64_t from = tile.first + min(n, tile.queries - 1) * call.queries.head_stride;
  const auto number = [&](int i) {
    return read_number(call.queries.data, from + i, call.queries.type);
  };
  const float scale = call.logit_scale * 1.44269504f, turned = scale * call.rope_magnitude;
  const float2* const means = reinterpret_cast<const float2*>(shared + memory.means);
  float2* const to = reinterpret_cast<float2*>(shared + memory.products) + n * pairs;
#pragma unroll 2
  for (int j = lane; j < pairs; j += 32) {
    const PairPlace at = pair_place(j, pairs, call.neighbours);
    const float x = turned * number(at.first), y = turned * number(at.second);
    const float2 mean = means[j];
    to[j] = make_float2(x * mean.x + y * mean.y, y * mean.x - x * mean.y);
  }
  float constant = 0.0f;
#pragma unroll 1
  for (int i = 2 * pairs + lane; i < call.key_dim; i += 32) {
    constant += scale * number(i) * __ldg(call.key_means + tile.head * call.key_dim + i);
  }
  for (int o = 16; o > 0; o /= 2) constant += __shfl_xor_sync(~0u, constant, o);
  if (lane == 0) reinterpret_cast<float*>(shared + memory.constants)[n] = constant;
}

// What depends on neither queries nor positions, to shared memory: the mean of the head's keys, and what slow
// pairs make of the polynomials.
template <int kWarps>
__device__ __forceinline__ void read_means(const AttendCall& call, int head, const FoldMemory& memory,
                                           char* shared) {
  const int pairs = call.rope_pairs, own = static_cast<int>(threadIdx.x);
  const auto* const slow = reinterpret_cast<const float4*>(call.mean_slow_table);
  static_assert(2 * kMaxPairs <= 32 * kWarps);
  if (own < 2 * (pairs - call.mean_alone)) {
    reinterpret_cast<float4*>(shared + memory.slow)[own] = __ldg(slow + own);
  }
  if (own < pairs) {
    const PairPlace at = pair_place(own, pairs, call.neighbours);
    const float* const mean = call.key_means + head * call.key_dim;
    reinterpret_cast<float2*>(shared + memory.means)[own] =
        make_float2(__ldg(mean + at.first), __ldg(mean + at.second));
  }
}

// Turns at the middle of kBlocks blocks of the mean, two pairs by each thread at a time: asked for first and
// put into shared memory, [pairs][blocks], when there is room.
template <int kWarps, int kBlocks, int kSegments>
struct FoldTurns {
  static constexpr int kOwn = kBlocks / kWarps, kPairs = (kSegments + 3) / 4, kStep = kMeanBlock / kTurnStep;
  float4 turn[kPairs][kOwn];

  // Of blocks beyond the last: those of the last.
  __device__ __forceinline__ void load(const AttendCall& call, int first, int count) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, pairs = call.rope_pairs;
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int j = min(64 * k + 2 * lane, pairs - 2);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int block = first + min(warp + i * kWarps, count - 1);
        turn[k][i] = __ldg(reinterpret_cast<const float4*>(call.turns + (kStep * block + kStep / 2) * pairs + j));
      }
    }
  }
  __device__ __forceinline__ void store(const AttendCall& call, const FoldMemory& memory, char* shared) const {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      const int j = 64 * k + 2 * lane;
      if (j >= call.rope_pairs) break;
      float2* const to = reinterpret_cast<float2*>(shared + memory.turns) + j * (kBlocks + 1) + warp;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        to[i * kWarps] = make_float2(turn[k][i].x, turn[k][i].y);
        to[kBlocks + 1 + i * kWarps] = make_float2(turn[k][i].z, turn[k][i].w);
      }
    }
  }
};

// `count` blocks of the mean, up to kBlocks, of which the first is `slot` in working memory. All of the block's
// threads come here together, products and turns having been made.
template <int kWarps, int kBlocks>
__device__ __forceinline__ void fold_blocks(const AttendCall& call, const HeadTile& tile, int count,
                                            std::int64_t slot, const FoldMemory& memory,
                                            char* shared) {
  constexpr int kOwn = kBlocks / 32;  // blocks of a thread: lane, lane + 32, ..
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int pairs = call.rope_pairs, alone = call.mean_alone, sines = alone + alone % 2;
  const int evens = 2 * sines, steps = call.mean_terms / 16;
  const float2* const turns = reinterpret_cast<const float2*>(shared + memory.turns) + lane;
  auto* const folded = reinterpret_cast<std::uint32_t*>(shared + memory.folded);
  // The four schedulers of a processor take warps by turns: each gets both kinds, one of which is longer.
  static_assert(kWarps == 2 * kTileQueries);
  const int n = warp % kTileQueries;
  if (n < tile.queries) {
    const float2* const products = reinterpret_cast<const float2*>(shared + memory.products) + n * pairs;
    std::uint32_t* const row = folded + (n * kBlocks + lane) * memory.fold_stride;
    const int next = 32 * memory.fold_stride;
    const auto turned = [&](float2 w, int j, int i) {
      const float2 by = turns[j * (kBlocks + 1) + 32 * i];
      return make_float2(w.x * by.x + w.y * by.y, w.y * by.x - w.x * by.y);
    };
    if (warp < kTileQueries) {
#pragma unroll 2
      for (int j = 0; j < alone; j += 2) {
        const bool two = j + 1 < alone;
        const float2 w = products[j], z = two ? products[j + 1] : make_float2(0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          const float2 u = turned(w, j, i), v = turned(z, two ? j + 1 : j, i);
          row[i * next + folded_word(j)] = halves(u.x, v.x);
          row[i * next + folded_word(sines + j)] = halves(u.y, v.y);
        }
      }
    } else {
      float even[kOwn][4] = {}, odd[kOwn][4] = {};
      const float4* by = reinterpret_cast<const float4*>(shared + memory.slow);
      int j = alone;
#pragma unroll 4
      for (; j < call.mean_slowest; ++j, by += 2) {
        const float2 w = products[j];
        const float4 e = by[0], d = by[1];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          const float2 u = turned(w, j, i);
          even[i][0] += u.x * e.x, even[i][1] += u.x * e.y, even[i][2] += u.x * e.z, even[i][3] += u.x * e.w;
          odd[i][0] += u.y * d.x, odd[i][1] += u.y * d.y, odd[i][2] += u.y * d.z, odd[i][3] += u.y * d.w;
        }
      }
      // The slowest pairs need the two lowest polynomials of either parity only.
#pragma unroll 4
      for (; j < pairs; ++j, by += 2) {
        const float2 w = products[j];
        const float2 e = *reinterpret_cast<const float2*>(by);
        const float2 d = *reinterpret_cast<const float2*>(by + 1);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          const float2 u = turned(w, j, i);
          even[i][0] += u.x * e.x, even[i][1] += u.x * e.y;
          odd[i][0] += u.y * d.x, odd[i][1] += u.y * d.y;
        }
      }
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        int used = evens;
        if (call.mean_slow > 0) {
          row[i * next + folded_word(evens)] = halves(even[i][1], even[i][2]);
          row[i * next + folded_word(evens + 2)] = halves(even[i][3], odd[i][0]);
          row[i * next + folded_word(evens + 4)] = halves(odd[i][1], odd[i][2]);
          row[i * next + folded_word(evens + 6)] = halves(odd[i][3], 0.0f);
          used += 8;
        }
#pragma unroll 1
        for (int k = used; k < call.mean_terms; k += 2) row[i * next + folded_word(k)] = 0;
        if (32 * i + lane < count) {
          auto* const constants = reinterpret_cast<float*>(
              call.folded + (slot + 32 * i + lane) * call.folded_bytes() + call.folded_operands());
          constants[tile.group_query + n] =
              even[i][0] + reinterpret_cast<const float*>(shared + memory.constants)[n];
        }
      }
    }
  }
  __syncthreads();
  // 16 bytes by each thread at a time: two for each step of a query and block.
  const int part = threadIdx.x % 2;
#pragma unroll 1
  for (int i = threadIdx.x / 2; i < (tile.queries + tile.padding) * kBlocks; i += 16 * kWarps) {
    const int block = i % kBlocks, n = i / kBlocks, query = tile.group_query + n;
    if (block >= count) continue;
    const bool padding = n >= tile.queries;
    const std::uint32_t* from = folded + i * memory.fold_stride + 4 * part;
    auto* to = reinterpret_cast<uint4*>(call.folded + (slot + block) * call.folded_bytes() +
                                        (query / 8 * steps * 32 + query % 8 * 4 + 2 * part) * 8);
#pragma unroll 1
    for (int s = 0; s < steps; ++s, from += 8, to += 16) {
      *to = padding ? make_uint4(0, 0, 0, 0) : make_uint4(from[0], from[1], from[2], from[3]);
    }
    if (padding) {
      reinterpret_cast<float*>(call.folded + (slot + block) * call.folded_bytes() + call.folded_operands())[query] = 0.0f;
    }
  }
}

}  // namespace kvspan::cuda
