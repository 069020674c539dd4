// SPDX-License-Identifier: Apache-2.0
// What queries make of the mean of keys: for each block of kMeanBlock positions the sums of
// cache/bands/anchored_means.h, in f16 and in the order of a matrix operand; what is equal for all
// positions of a block stays in f32. A block of threads does so for two tiles of eight queries and a run of blocks, of
// which a warp takes a few at a time; each thread gets the sums that it writes.
// Products of queries with the mean are the same for all blocks. Those of pairs that are met alone are turned by each
// block's turns. Those of slow pairs become polynomials by matrix products with turns times polynomials, of which alone
// something is rounded: products of queries are split into two f16 numbers each.
#pragma once

#include <cuda_fp16.h>

#include "cuda/bands/prepare_memory.cuh"
#include "cuda/kernels/attend_rows.cuh"
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/rows.cuh"

namespace kvspan::cuda {

__device__ __forceinline__ std::uint32_t halves(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

// Two tiles of eight queries, as groups are padded to them: the first, of all groups, and how many there are of the
// two. Of a row of the sixteen: its group, place among the group's queries, and KV head.
struct FoldTiles {
  int item, first, count, of_group, first_head;
  __device__ __forceinline__ FoldTiles(const AttendCall& call, int own_item, int pair)
      : item(own_item), first(2 * pair), of_group(call.padded_queries / 8) {
    count = min(2, call.groups * of_group - first);
    first_head = row(call, 0).head;
  }
  struct Row {
    int group, query, head;
    bool there;  // else padding, which is read as the group's last
  };
  __device__ __forceinline__ Row row(const AttendCall& call, int i) const {
    const int tile = first + min(i / 8, count - 1), group = tile / of_group;
    const int repeats = call.query_heads / call.kv_heads, query = (tile - group * of_group) * 8 + i % 8;
    const int used = min(query, call.group_heads * repeats - 1);
    return {group, used, group * call.group_heads + used / repeats, query == used && i / 8 < count};
  }
};

// Turns at the middles of the blocks that a warp folds next: asked for first, and put into shared memory when those
// before have been read; two pairs by each lane at a time.
template <int kSegments>
struct FoldTurns {
  static constexpr int kOnce = kFoldedAtOnce, kPairs = (kSegments + 3) / 4;
  static constexpr int kStride = FoldMemory::turn_stride(32 * kSegments);
  float4 turn[kOnce][kPairs];

  // Of blocks beyond the last: those of the last.
  __device__ __forceinline__ void load(const AttendCall& call, int first, int last) {
    constexpr int kStep = kMeanBlock / kTurnStep;
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < kOnce; ++i) {
      const auto* const from = reinterpret_cast<const float4*>(
          call.turns + (kStep * min(first + i, last) + kStep / 2) * call.rope_pairs);
#pragma unroll
      for (int k = 0; k < kPairs; ++k) turn[i][k] = __ldg(from + min(32 * k + lane, call.rope_pairs / 2 - 1));
    }
  }
  // to: of the warp, [blocks][kStride], pairs filled up with the last ones, but for eight that clear fills.
  __device__ __forceinline__ static void clear(float2* to) {
    const int lane = threadIdx.x & 31;
    if (lane < 8 * kOnce) to[lane / 8 * kStride + 64 * kPairs + lane % 8] = make_float2(0.0f, 0.0f);
  }
  __device__ __forceinline__ void store(float2* to) const {
    const int lane = threadIdx.x & 31;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kOnce; ++i) {
#pragma unroll
      for (int k = 0; k < kPairs; ++k) *reinterpret_cast<float4*>(to + i * kStride + 64 * k + 2 * lane) = turn[i][k];
    }
    __syncwarp();
  }
};

// The means of the keys of all heads that rows meet, to shared memory, with all threads.
__device__ __forceinline__ void read_means(const AttendCall& call, const FoldTiles& tiles, const FoldMemory& memory,
                                           char* shared) {
  const int numbers = (tiles.row(call, 15).head + 1 - tiles.first_head) * call.key_dim;
  const auto* const from = reinterpret_cast<const float4*>(call.key_means + tiles.first_head * call.key_dim);
#pragma unroll 1
  for (int i = threadIdx.x; i < numbers / 4; i += 32 * kPrepareWarps) {
    reinterpret_cast<float4*>(shared + memory.means)[i] = __ldg(from + i);
  }
}

__device__ __forceinline__ void swap_two(float& a, float& b) {
  const float c = a;
  a = b, b = c;
}

// u . Rot mu = Re(conj(mu) u) cos + Im(conj(mu) u) sin of two rows by each warp, to shared memory: of pairs that are
// met alone by the terms that they add to, of slow ones as operands. Pairs that are met alone are an even number.
template <int kSegments>
__device__ __forceinline__ void multiply_means(const AttendCall& call, const FoldTiles& tiles, const FoldMemory& memory,
                                               char* shared) {
  static_assert(2 * kPrepareWarps == 16);
  constexpr int kOwn = (kSegments + 1) / 2;  // of two pairs, of a lane: 2 l, 2 l + 32, ..
  const int lane = threadIdx.x & 31, l = lane & 15, i16 = static_cast<int>(threadIdx.x) >> 4;
  const int pairs = call.rope_pairs, alone = call.mean_alone;
  const int repeats = call.query_heads / call.kv_heads;
  const FoldTiles::Row row = tiles.row(call, i16);
  const float scale = row.there ? call.logit_scale * 1.44269504f : 0.0f, turned = scale * call.rope_magnitude;
  const std::int64_t from = tiles.item * call.queries.token_stride +
                            (row.group * call.group_heads * repeats + row.query) * call.queries.head_stride;
  const bool near = call.neighbours;
  float2 x[kOwn], y[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int j = min(32 * i + 2 * l, pairs - 2);
    const std::int64_t at = from + (near ? 2 * j : j);
    x[i] = read_two(call.queries.data, at, call.queries.type);
    y[i] = read_two(call.queries.data, at + (near ? 2 : pairs), call.queries.type);
  }
  const float* const means = reinterpret_cast<const float*>(shared + memory.means) +
                             (row.head - tiles.first_head) * call.key_dim;
  float4* const terms = reinterpret_cast<float4*>(shared + memory.terms) + i16 * memory.term_stride / 2;
  // A step of eight pairs is one of sixteen numbers; the lower halves follow the upper ones.
  const auto put_slow = [&](int s, float p, float q) {
    if (s < 0 || s >= 8 * memory.slow_steps) return;
    std::uint32_t* const to = reinterpret_cast<std::uint32_t*>(shared + memory.slow) +
                              (s / 8 * 64 + i16 % 8 * 4 + s % 4) * 4 + s % 8 / 4 * 2 + i16 / 8;
    split_halves(p, q, to[0], to[32 * 4]);
  };
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int j = 32 * i + 2 * l;
    const float* const mean = means + (near ? 2 * j : j);
    float2 p = make_float2(0.0f, 0.0f), q = p;  // the first numbers of both pairs' means, and the second ones
    if (j < pairs) {
      p = *reinterpret_cast<const float2*>(mean);
      q = *reinterpret_cast<const float2*>(mean + (near ? 2 : pairs));
    }
    if (near) {
      swap_two(x[i].y, y[i].x);
      swap_two(p.y, q.x);
    }
    const float a = turned * (x[i].x * p.x + y[i].x * q.x), b = turned * (y[i].x * p.x - x[i].x * q.x);
    const float c = turned * (x[i].y * p.y + y[i].y * q.y), d = turned * (y[i].y * p.y - x[i].y * q.y);
    if (j < 4 * alone_eights(alone)) {
      const bool there = j < alone;
      float4* const to = terms + j / 4 * 4 + j % 4 / 2;
      to[0] = there ? make_float4(a, b, c, d) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      to[2] = there ? make_float4(b, -a, d, -c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    put_slow(j - alone, a, b);
    put_slow(j + 1 - alone, c, d);
  }
  if (l < 8) put_slow(32 * kOwn + l - alone, 0.0f, 0.0f);  // what fills up the last step
  float constant = 0.0f;
#pragma unroll 1
  for (int i = 2 * pairs + l; i < call.key_dim; i += 16) {
    constant += scale * read_number(call.queries.data, from + i, call.queries.type) * means[i];
  }
  for (int o = 8; o > 0; o /= 2) constant += __shfl_xor_sync(~0u, constant, o);
  if (l == 0) reinterpret_cast<float*>(shared + memory.constants)[i16] = constant;
}

// Blocks first, first + 1, .. of the warp, of which those from `count` on are not there. turns: of the warp, as FoldTurns
// leaves them. to: where the run's first block lies, of both tiles of queries.
template <int kSegments>
__device__ __forceinline__ void fold_blocks(const AttendCall& call, const FoldTiles& tiles, int first, int count,
                                            const FoldMemory& memory, const char* shared, const float2* turns,
                                            std::byte* const (&to)[2], const int (&tile_of)[2]) {
  constexpr int kOnce = FoldTurns<kSegments>::kOnce, kTurns = FoldTurns<kSegments>::kStride;
  const int lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
  const auto* const slow = reinterpret_cast<const uint4*>(shared + memory.slow) + lane;
  // Even polynomials meet the first number of a product with the cosine and the second with the sine, odd ones with
  // minus the sine, which is minus the polynomial, and the cosine.
  const bool odd = odd_polynomial(g);
  const auto* const one = reinterpret_cast<const float*>(turns + call.mean_alone + c) + (odd ? 1 : 0);
  const auto* const other = reinterpret_cast<const float*>(turns + call.mean_alone + c) + (odd ? 0 : 1);
  float sums[kOnce][4] = {}, lower[kOnce][4] = {};
#pragma unroll 2
  for (int s = 0; s < memory.slow_steps; ++s) {
    const uint4 high = slow[s * 64], low = slow[s * 64 + 32];
    const float4 by = __ldg(call.fold_polynomials + s * 32 + lane);
#pragma unroll
    for (int i = 0; i < kOnce; ++i) {
      const int at = 2 * (i * kTurns + 8 * s);
      const uint2 b = make_uint2(halves(by.x * one[at], by.y * other[at]), halves(by.z * one[at + 8], by.w * other[at + 8]));
      mma_f16(sums[i], high, b);
      mma_f16(lower[i], low, b);
    }
  }
#pragma unroll
  for (int i = 0; i < kOnce; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[i][j] += lower[i][j];
  }
  // The lowest even polynomial is 1: it belongs to what is the same for the whole block.
  if (c == 3) {
    const auto* const constants = reinterpret_cast<const float*>(shared + memory.constants) + g;
#pragma unroll
    for (int i = 0; i < kOnce; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (first + i < count && r < tiles.count) {
          reinterpret_cast<float*>(to[r] + (first + i) * call.folded_bytes() + call.folded_operands())[tile_of[r] * 8 + g] =
              sums[i][2 * r + 1] + constants[8 * r];
        }
        sums[i][2 * r + 1] = 0.0f;
      }
    }
  }
  const int steps = call.mean_terms / 16, eights = alone_eights(call.mean_alone);
  const auto* const terms = reinterpret_cast<const float2*>(shared + memory.terms) + g * memory.term_stride + 2 * c;
  const auto words_of = [&](int eight, int r, std::uint32_t (&words)[kOnce]) {
    if (eight < eights) {
      const float4 w = *reinterpret_cast<const float4*>(terms + 8 * r * memory.term_stride + 8 * eight);
#pragma unroll
      for (int i = 0; i < kOnce; ++i) {
        const float4 by = *reinterpret_cast<const float4*>(turns + i * kTurns + 4 * eight + 2 * (c % 2));
        words[i] = halves(w.x * by.x + w.y * by.y, w.z * by.z + w.w * by.w);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kOnce; ++i) words[i] = eight == eights ? halves(sums[i][2 * r], sums[i][2 * r + 1]) : 0;
    }
  };
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (r >= tiles.count) break;
      std::uint32_t low[kOnce], high[kOnce];
      words_of(2 * s, r, low);
      words_of(2 * s + 1, r, high);
      std::byte* const from = to[r] + first * call.folded_bytes() + (tile_of[r] * steps + s) * 256 + lane * 8;
#pragma unroll
      for (int i = 0; i < kOnce; ++i) {
        if (first + i < count) {
          *reinterpret_cast<uint2*>(from + i * call.folded_bytes()) = make_uint2(low[i], high[i]);
        }
      }
    }
  }
}

}  // namespace kvspan::cuda
