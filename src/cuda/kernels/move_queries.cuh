// SPDX-License-Identifier: Apache-2.0
// Queries into coefficient space: turned back by the angle of each anchor, rounded to 8 bits, times
// the key rows of B (8 bits too, with a scale for each place), and rounded to 8 bits again with one
// scale for a row, in the order that attend_bands reads.
//
// A block works for one KV head. A warp holds the basis of one chunk of 64 places in registers, for
// all rows (a row is one query at one anchor) that the block meets; 32 rows at a time. Groups of more
// chunks than warps read the basis again for each 32 rows (kWide).
#pragma once

#include "cuda/attend_call.h"
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/rows.cuh"

namespace kvspan::cuda {

inline constexpr int kMoveRows = 32;
inline constexpr int kMaxMoveWarps = 8;

template <int kSteps>  // of 32 numbers of a key
struct MoveMemory {
  static constexpr int kStride = 32 * kSteps + 16;
  std::int8_t rows[kMoveRows][kStride];
  float scales[kMoveRows];  // of the turned rows
  std::int64_t to[kMoveRows];  // index of the moved row's anchor; -1: none
  float most[kMaxMoveWarps][kMoveRows];
  int levels[kMaxMoveWarps][kMoveRows];
};

// Row `row` of the head: turned and rounded, by one warp.
template <int kSteps>
__device__ __forceinline__ void turn_row(const AttendCall& call, int head, int row, int total,
                                         int slot, MoveMemory<kSteps>& memory) {
  const int lane = threadIdx.x & 31;
  const int repeats = call.query_heads / call.kv_heads;
  if (row >= total) {
    if (lane == 0) memory.to[slot] = -1;
    for (int i = lane; i < 32 * kSteps; i += 32) memory.rows[slot][i] = 0;
    return;
  }
  const int anchor = row / repeats, query = head * repeats + row % repeats;
  int index = 0;
  while (index + 1 < call.item_count && call.items[index + 1].anchors_before <= anchor) ++index;
  const AttendItem& item = call.items[index];
  const int block = item.first_anchor + anchor - item.anchors_before;
  const int turn = (block * call.anchor + call.anchor / 2) / kTurnStep;
  const float2* const turns = call.turns + static_cast<std::int64_t>(turn) * call.rope_pairs;
  const std::int64_t from = index * call.queries.token_stride + query * call.queries.head_stride;
  constexpr int kPairs = kSteps >= 2 ? kSteps / 2 : 1;
  float x[kPairs], y[kPairs], rest = 0.0f, most = 0.0f;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    x[i] = y[i] = 0.0f;
    const int j = 32 * i + lane;
    if (j >= call.rope_pairs) continue;
    const PairPlace at = pair_place(j, call.rope_pairs, call.neighbours);
    x[i] = read_number(call.queries.data, from + at.first, call.queries.type);
    y[i] = read_number(call.queries.data, from + at.second, call.queries.type);
    // However it is turned, a pair's numbers stay below its length.
    most = fmaxf(most, call.rope_magnitude * sqrtf(x[i] * x[i] + y[i] * y[i]));
  }
  const int rotated = 2 * call.rope_pairs;
  for (int i = rotated + lane; i < call.key_dim; i += 32) {
    rest = fmaxf(rest, fabsf(read_number(call.queries.data, from + i, call.queries.type)));
  }
  most = fmaxf(most, rest);
#pragma unroll
  for (int o = 16; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
  const float inverse = most > 0.0f ? 127.0f / most : 0.0f;
  std::int8_t* const to = memory.rows[slot];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int j = 32 * i + lane;
    if (j >= call.rope_pairs) continue;
    const PairPlace at = pair_place(j, call.rope_pairs, call.neighbours);
    const float2 t = __ldg(turns + j);
    const float by = inverse * call.rope_magnitude;
    to[at.first] = static_cast<std::int8_t>(__float2int_rn((x[i] * t.x + y[i] * t.y) * by));
    to[at.second] = static_cast<std::int8_t>(__float2int_rn((y[i] * t.x - x[i] * t.y) * by));
  }
  for (int i = rotated + lane; i < 32 * kSteps; i += 32) {
    const float z =
        i < call.key_dim ? read_number(call.queries.data, from + i, call.queries.type) : 0.0f;
    to[i] = static_cast<std::int8_t>(__float2int_rn(z * inverse));
  }
  if (lane == 0) {
    memory.scales[slot] = most / 127.0f * call.logit_scale * 1.44269504f;
    memory.to[slot] = anchor;
  }
}

// Sums of 32 rows with the basis of a chunk: acc[half][j]: rows 16 half + g and + 8, bytes 16 c + 2 j
// and + 1.
template <int kSteps>
__device__ __forceinline__ void multiply_rows(const MoveMemory<kSteps>& memory,
                                              const uint2 (&basis)[8][kSteps], int g, int c,
                                              int (&acc)[2][8][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < 8; ++j) acc[half][j][0] = acc[half][j][1] = acc[half][j][2] = acc[half][j][3] = 0;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const std::int8_t* const low = memory.rows[16 * half + g] + 32 * s + 4 * c;
      const std::int8_t* const high = memory.rows[16 * half + 8 + g] + 32 * s + 4 * c;
      const std::uint32_t a0 = *reinterpret_cast<const std::uint32_t*>(low);
      const std::uint32_t a1 = *reinterpret_cast<const std::uint32_t*>(high);
      const std::uint32_t a2 = *reinterpret_cast<const std::uint32_t*>(low + 16);
      const std::uint32_t a3 = *reinterpret_cast<const std::uint32_t*>(high + 16);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        mma_s8_s8(acc[half][j], a0, a1, a2, a3, basis[j][s].x, basis[j][s].y);
      }
    }
  }
}

template <int kSteps>
__device__ __forceinline__ void load_basis(const AttendCall& call, const std::int8_t* head,
                                           int chunk, int lane, uint2 (&basis)[8][kSteps]) {
  const uint2* const from = reinterpret_cast<const uint2*>(head) +
                            static_cast<std::int64_t>(chunk) * 8 * kSteps * 32 + lane;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) basis[j][s] = __ldg(from + (j * kSteps + s) * 32);
  }
}

// `block` of `blocks` that work for the head.
template <int kSteps, bool kWide>
__device__ void move_queries(const AttendCall& call, int head, int block, int blocks,
                             MoveMemory<kSteps>& memory) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
  const int warps = blockDim.x >> 5;
  const int group = head / call.group_heads, within = head % call.group_heads;
  const int repeats = call.query_heads / call.kv_heads;
  const int total = call.total_anchors * repeats;
  const int padded = call.padded_queries, places = call.chunks * kChunkPlaces;
  const AttendCall::Group& code = call.group_table[group];
  const std::int8_t* const head_basis =
      code.key_basis + static_cast<std::int64_t>(within) * places * 32 * kSteps;
  const float* const head_scales = code.key_scales + within * places;
  const std::uint8_t* const widths = call.chunk_widths + group * kMaxChunks;
  uint2 basis[8][kSteps];
  int acc[2][8][4];
  if (!kWide && warp < call.chunks) load_basis<kSteps>(call, head_basis, warp, lane, basis);

  for (int first = block * kMoveRows; first < total; first += blocks * kMoveRows) {
    __syncthreads();  // what was written before has been read
    for (int r = warp; r < kMoveRows; r += warps) {
      turn_row<kSteps>(call, head, first + r, total, r, memory);
    }
    __syncthreads();
    float most[4] = {};
    for (int k = warp; k < call.chunks; k += warps) {
      if (kWide) load_basis<kSteps>(call, head_basis, k, lane, basis);
      multiply_rows<kSteps>(memory, basis, g, c, acc);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 s = __ldg(reinterpret_cast<const float2*>(head_scales + 64 * k + 16 * c) + j);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const float x = static_cast<float>(acc[half][j][r]) * (r % 2 == 0 ? s.x : s.y);
            most[2 * half + r / 2] = fmaxf(most[2 * half + r / 2], fabsf(x));
            if (!kWide) acc[half][j][r] = __float_as_int(x);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
      most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 2));
      if (c == 0) memory.most[warp][8 * i + g] = most[i];
    }
    __syncthreads();
    int levels[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      most[i] = 0.0f;
      for (int w = 0; w < warps; ++w) most[i] = fmaxf(most[i], memory.most[w][8 * i + g]);
    }
    for (int k = warp; k < call.chunks; k += warps) {
      if (kWide) {
        load_basis<kSteps>(call, head_basis, k, lane, basis);
        multiply_rows<kSteps>(memory, basis, g, c, acc);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 s =
              __ldg(reinterpret_cast<const float2*>(head_scales + 64 * k + 16 * c) + j);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              acc[half][j][r] = __float_as_int(static_cast<float>(acc[half][j][r]) *
                                               (r % 2 == 0 ? s.x : s.y));
            }
          }
        }
      }
      const int level = (1 << __ldg(widths + k)) - 1;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i / 2, low = i % 2 * 2;
        const float inverse = most[i] > 0.0f ? 127.0f / most[i] : 0.0f;
        std::uint32_t word[4];
        int sum = 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const int a = __float2int_rn(__int_as_float(acc[half][2 * w][low]) * inverse);
          const int b = __float2int_rn(__int_as_float(acc[half][2 * w][low + 1]) * inverse);
          const int d = __float2int_rn(__int_as_float(acc[half][2 * w + 1][low]) * inverse);
          const int e = __float2int_rn(__int_as_float(acc[half][2 * w + 1][low + 1]) * inverse);
          word[w] = __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(d, e, 0x0040), 0x5410);
          sum += a + b + d + e;
        }
        levels[i] += sum * level;
        const std::int64_t anchor = memory.to[8 * i + g];
        if (anchor < 0) continue;
        const std::int64_t row =
            ((static_cast<std::int64_t>(group) * call.total_anchors + anchor) * call.chunks + k) *
                padded +
            within * repeats + (first + 8 * i + g) % repeats;
        *reinterpret_cast<uint4*>(call.moved + row * 64 + 16 * c) =
            make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      levels[i] += __shfl_xor_sync(~0u, levels[i], 1);
      levels[i] += __shfl_xor_sync(~0u, levels[i], 2);
      if (c == 0) memory.levels[warp][8 * i + g] = levels[i];
    }
    __syncthreads();
    if (threadIdx.x < kMoveRows && memory.to[threadIdx.x] >= 0) {
      const int r = threadIdx.x;
      float whole = 0.0f;
      int sum = 0;
      for (int w = 0; w < warps; ++w) {
        whole = fmaxf(whole, memory.most[w][r]);
        sum += memory.levels[w][r];
      }
      const std::int64_t at =
          (static_cast<std::int64_t>(group) * call.total_anchors + memory.to[r]) * padded +
          within * repeats + (first + r) % repeats;
      call.moved_scales[at] = make_float2(whole / 127.0f * memory.scales[r], __int_as_float(sum));
    }
  }
}

}  // namespace kvspan::cuda
