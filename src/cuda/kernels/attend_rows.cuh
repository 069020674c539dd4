// SPDX-License-Identifier: Apache-2.0
// Attention to full-rank f16 rows: the ends of a coded sequence, or all of one that is not coded.
// A warp takes one KV head, up to eight of its query heads, a part of the rows and up to 128 numbers
// of values, 16 rows at a time, by matrix products. Queries and weights are split into two f16
// numbers each, so that nothing but f32 is rounded. Loops are not unrolled much: most of the time a
// warp runs this code once, and waits for its instructions.
//
// Scores are [queries, rows]: a thread (g = lane / 4, c = lane % 4) has query g and rows 2 c, 2 c + 1
// of each eight, which is what the second product takes as its right operand.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/attend_call.h"
#include "cuda/kernels/rows.cuh"
#include "cuda/kernels/softmax.cuh"

namespace kvspan::cuda {

inline constexpr int kRowQueries = 8, kRowTile = 16, kRowValues = 128;

// Units of work of one warp each: parts, KV heads, eights of query heads, values by 128.
__host__ __device__ inline int row_units(const AttendCall& call, int row_parts) {
  const int repeats = call.query_heads / call.kv_heads;
  return row_parts * call.kv_heads * ((repeats + kRowQueries - 1) / kRowQueries) *
         ((call.value_dim + kRowValues - 1) / kRowValues);
}

// x = high + low, but for 2^-22 of it.
__device__ __forceinline__ void split_halves(float x, float y, std::uint32_t& high,
                                             std::uint32_t& low) {
  const __half2 h = __floats2half2_rn(x, y);
  const float2 f = __half22float2(h);
  const __half2 l = __floats2half2_rn(x - f.x, y - f.y);
  high = *reinterpret_cast<const std::uint32_t*>(&h);
  low = *reinterpret_cast<const std::uint32_t*>(&l);
}

// d += A B, A f16 [16, 16] whose lower eight rows are zeros.
__device__ __forceinline__ void mma_upper(float (&d)[4], std::uint32_t a0, std::uint32_t a2,
                                          std::uint32_t b0, std::uint32_t b1) {
  mma_f16(d, make_uint4(a0, 0, a2, 0), make_uint2(b0, b1));
}

// after_rows is called when all rows have been asked for: from then on queries can be read, and rows with
// them.
template <class AfterRows>
__device__ __forceinline__ void attend_row_unit(const AttendCall& call, int unit, const AfterRows& after_rows) {
  const int lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
  const int repeats = call.query_heads / call.kv_heads;
  const int query_tiles = (repeats + kRowQueries - 1) / kRowQueries;
  const int value_tiles = (call.value_dim + kRowValues - 1) / kRowValues;
  const int value_tile = unit % value_tiles;
  unit /= value_tiles;
  const int first = unit % query_tiles * kRowQueries;
  unit /= query_tiles;
  const int head = unit % call.kv_heads, part = unit / call.kv_heads;
  int index = 0;
  while (index + 1 < call.plan().item_count && call.plan().row_parts_before[index + 1] <= part)
    ++index;
  const AttendItem& item = call.plan().items[index];
  const int queries = min(kRowQueries, repeats - first);
  const int before = item.before.size(), rows = before + item.after.size();
  const int tiles = (rows + kRowTile - 1) / kRowTile;
  const int own_part = part - call.plan().row_parts_before[index];
  const auto cut = [&](int p) {
    return static_cast<int>(static_cast<std::int64_t>(tiles) * p / item.row_parts);
  };
  const int begin = cut(own_part), end = cut(own_part + 1);

  const std::int64_t own_query =
      index * call.queries.token_stride +
      (head * repeats + first + min(g, queries - 1)) * call.queries.head_stride;
  const float scale = g < queries ? call.logit_scale * 1.44269504f : 0.0f;
  // A row of the part, which may lie beyond the last: then the last. Looking up where it lies takes a while.
  struct RowPlace {
    const __half *key, *value;
  };
  const auto row_at = [&](int i) {
    i = min(i, rows - 1);
    const int position = i < before ? item.before.first + i : item.after.first + i - before;
    // Whatever a table holds that is still being written is a page when rows are asked for early.
    const int own_page = max(0, __ldcg(item.row_pages + position / kRowPageTokens));
    const std::int64_t page =
        row_page_at(own_page, call.row_layer_halves, head, call.key_dim, call.value_dim);
    const int slot = position % kRowPageTokens;
    const __half* const rows_of_page = reinterpret_cast<const __half*>(call.pages) + page;
    return RowPlace{rows_of_page + slot * call.key_dim,
                    rows_of_page + kRowPageTokens * call.key_dim + slot * call.value_dim};
  };

  // Lines of 64 numbers come nearer: of the first rows, where a warp has many.
  if (const int first_row = kRowTile * begin + lane; first_row < min(kRowTile * end, rows)) {
    const RowPlace row = row_at(first_row);
#pragma unroll 1
    for (int i = 0; i < call.key_dim; i += 64) prefetch(row.key + i);
#pragma unroll 1
    for (int i = kRowValues * value_tile; i < min(kRowValues * (value_tile + 1), call.value_dim); i += 64) {
      prefetch(row.value + i);
    }
  }
  after_rows();

  float sums[2][4][4] = {};  // [64 values][j]: values 8 g + j and 8 g + 4 + j, queries 2 c, 2 c + 1
  float most = kNothing, weights = 0.0f;  // of query g
#pragma unroll 1
  for (int tile = begin; tile < end; ++tile) {
    const int base = tile * kRowTile;
    float score[2][4] = {};  // [8 rows]: rows 2 c and 2 c + 1 of query g; the others are nothing
    const __half* const keys[2] = {row_at(base + g).key + 8 * c, row_at(base + 8 + g).key + 8 * c};
#pragma unroll 4
    for (int k = 8 * c; k < call.key_dim + 8 * c; k += 32) {
      const bool there = k < call.key_dim;
      std::uint32_t q[4] = {}, q_low[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float2 x = make_float2(0.0f, 0.0f);
        if (there) x = read_two(call.queries.data, own_query + k + 2 * i, call.queries.type);
        split_halves(x.x * scale, x.y * scale, q[i], q_low[i]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint4 x = make_uint4(0, 0, 0, 0);
        if (there) x = __ldg(reinterpret_cast<const uint4*>(keys[half] + k - 8 * c));
        mma_upper(score[half], q[0], q[1], x.x, x.y);
        mma_upper(score[half], q[2], q[3], x.z, x.w);
        mma_upper(score[half], q_low[0], q_low[1], x.x, x.y);
        mma_upper(score[half], q_low[2], q_low[3], x.z, x.w);
      }
    }
    float next = most;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool there = base + 8 * half + 2 * c + i < rows;
        if (call.soft_cap > 0.0f) score[half][i] = capped(score[half][i], call.soft_cap);
        if (!there) score[half][i] = kUnseen;
        next = fmaxf(next, score[half][i]);
      }
    }
    next = fmaxf(next, __shfl_xor_sync(~0u, next, 1));
    next = fmaxf(next, __shfl_xor_sync(~0u, next, 2));
    if (__any_sync(~0u, next > most)) {
      const float factor = exp2_approx(most - next);
      most = next;
      weights *= factor;
      const float by[2] = {__shfl_sync(~0u, factor, 8 * c), __shfl_sync(~0u, factor, 8 * c + 4)};
#pragma unroll
      for (int i = 0; i < 32; ++i) sums[i / 16][i / 4 % 4][i % 4] *= by[i % 2];
    }
    std::uint32_t w[2], w_low[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float x = exp2_approx(score[half][0] - most), y = exp2_approx(score[half][1] - most);
      weights += x + y;
      split_halves(x, y, w[half], w_low[half]);
    }
    const __half* value[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) value[i] = row_at(base + 8 * (i / 2) + 2 * c + i % 2).value;
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const int at = kRowValues * value_tile + 64 * v + 8 * g;
      if (kRowValues * value_tile + 64 * v >= call.value_dim) break;
      uint4 x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = at < call.value_dim ? __ldg(reinterpret_cast<const uint4*>(value[i] + at))
                                   : make_uint4(0, 0, 0, 0);
      }
      // Numbers 2 i and 2 i + 1 of two rows: low or high halves of both.
      const auto two = [&](int rows8, int number) {
        const std::uint32_t a = (&x[2 * rows8].x)[number / 2], b = (&x[2 * rows8 + 1].x)[number / 2];
        return __byte_perm(a, b, number % 2 == 0 ? 0x5410 : 0x7632);
      };
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint4 a = make_uint4(two(0, j), two(0, 4 + j), two(1, j), two(1, 4 + j));
        mma_f16(sums[v][j], a, make_uint2(w[0], w[1]));
        mma_f16(sums[v][j], a, make_uint2(w_low[0], w_low[1]));
      }
    }
  }
  weights += __shfl_xor_sync(~0u, weights, 1);
  weights += __shfl_xor_sync(~0u, weights, 2);
  const std::int64_t to =
      static_cast<std::int64_t>(part) * call.query_heads + head * repeats + first;
  if (c == 0 && g < queries && value_tile == 0) call.row_states[to + g] = make_float2(most, weights);
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    const int at = kRowValues * value_tile + 64 * v + 8 * g;
    if (at >= call.value_dim) continue;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (2 * c + e >= queries) continue;
      float4* const out =
          reinterpret_cast<float4*>(call.row_sums + (to + 2 * c + e) * call.value_dim + at);
      out[0] = make_float4(sums[v][0][e], sums[v][1][e], sums[v][2][e], sums[v][3][e]);
      out[1] = make_float4(sums[v][0][2 + e], sums[v][1][2 + e], sums[v][2][2 + e],
                           sums[v][3][2 + e]);
    }
  }
}

}  // namespace kvspan::cuda
