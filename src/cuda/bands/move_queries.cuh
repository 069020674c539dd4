// SPDX-License-Identifier: Apache-2.0
// Queries into coefficient space: turned back by the angle of each anchor, rounded to 8 bits, times
// the key rows of B (8 bits too, with a scale for each place), and rounded to 8 bits again with one
// scale for a row, in the order that attention reads. A block does so for a tile of heads and
// kMoveAnchors anchors: 32 rows, a chunk of 64 places by each warp.
// Whole numbers become floats and back by adding 1.5 x 2^23, whose lowest bits count units.
#pragma once

#include "cuda/bands/prepare_memory.cuh"
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/rows.cuh"

namespace kvspan::cuda {

inline constexpr float kUnits = 12582912.0f;  // 1.5 x 2^23
inline constexpr int kUnitBits = 0x4b400000;  // the same, as bits

// The anchors at hand: `count` from `first` on; where the first is in working memory.
struct MoveAnchors {
  int first, count;
  std::int64_t slot;
};

// The item's queries as numbers, zeros beyond them, and the longest of a query's pairs and other
// numbers: none is larger, however turned.
template <int kWarps>
__device__ __forceinline__ void read_queries(const AttendCall& call, const HeadTile& tile,
                                             const PrepareMemory& memory, char* shared) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float* const queries = reinterpret_cast<float*>(shared + memory.queries);
  const int numbers = 32 * key_steps_of(call.key_dim), repeats = call.query_heads / call.kv_heads;
  for (int n = warp; n < kTileQueries; n += kWarps) {
    const bool used = n < tile.queries;
    const std::int64_t from =
        tile.item * call.queries.token_stride +
        (tile.head * repeats + tile.query + (used ? n : 0)) * call.queries.head_stride;
    float* const query = queries + n * numbers;
#pragma unroll 2
    for (int k = 2 * lane; k < numbers; k += 64) {
      float2 x = make_float2(0.0f, 0.0f);
      if (used && k < call.key_dim) x = read_two(call.queries.data, from + k, call.queries.type);
      const float by = k < 2 * call.rope_pairs ? call.rope_magnitude : 1.0f;
      *reinterpret_cast<float2*>(query + k) = make_float2(by * x.x, by * x.y);
    }
    __syncwarp();
    float most = 0.0f;
#pragma unroll 1
    for (int j = lane; j < call.rope_pairs; j += 32) {
      const PairPlace at = pair_place(j, call.rope_pairs, call.neighbours);
      const float x = query[at.first], y = query[at.second];
      most = fmaxf(most, x * x + y * y);
    }
#pragma unroll 1
    for (int i = 2 * call.rope_pairs + lane; i < call.key_dim; i += 32) {
      most = fmaxf(most, query[i] * query[i]);
    }
    for (int o = 16; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    if (lane == 0) reinterpret_cast<float*>(shared + memory.longest)[n] = sqrtf(most);
  }
}

// Rows of the tile, turned and rounded: row 4 a + n is query n at anchor a. All queries of an anchor
// by one warp. Rows beyond the last anchor repeat it.
template <int kWarps>
__device__ __forceinline__ void turn_rows(const AttendCall& call, const MoveAnchors& anchors,
                                          const PrepareMemory& memory, char* shared) {
  constexpr int kLanePairs = kMaxPairs / 32;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int pairs = call.rope_pairs, numbers = 32 * key_steps_of(call.key_dim);
#pragma unroll 1
  for (int a = warp; a < kMoveAnchors; a += kWarps) {
    const int position =
        (anchors.first + min(a, anchors.count - 1)) * call.anchor + call.anchor / 2;
    const float2* const turns =
        call.turns + static_cast<std::int64_t>(position / kTurnStep) * pairs;
    float2 turn[kLanePairs];
#pragma unroll
    for (int i = 0; i < kLanePairs; ++i) {
      const int j = 32 * i + lane;
      turn[i] = j < pairs ? __ldg(turns + j) : make_float2(0.0f, 0.0f);
    }
#pragma unroll 1
    for (int n = 0; n < kTileQueries; ++n) {
      const float* const query =
          reinterpret_cast<const float*>(shared + memory.queries) + n * numbers;
      const float longest =
          reinterpret_cast<const float*>(shared + memory.longest)[n];
      const float by = longest > 0.0f ? __fdividef(127.0f, longest) : 0.0f;
      auto* const to = reinterpret_cast<std::int8_t*>(shared + memory.rows) +
                       (a * kTileQueries + n) * memory.row_stride;
#pragma unroll
      for (int i = 0; i < kLanePairs; ++i) {
        const int j = 32 * i + lane;
        if (j >= pairs) break;
        const PairPlace at = pair_place(j, pairs, call.neighbours);
        const float x = query[at.first], y = query[at.second];
        const float first = x * turn[i].x + y * turn[i].y;
        const float second = y * turn[i].x - x * turn[i].y;
        to[at.first] = static_cast<std::int8_t>(__float_as_int(fmaf(first, by, kUnits)));
        to[at.second] = static_cast<std::int8_t>(__float_as_int(fmaf(second, by, kUnits)));
      }
#pragma unroll 1
      for (int i = 2 * pairs + lane; i < numbers; i += 32) {
        to[i] = static_cast<std::int8_t>(__float_as_int(fmaf(query[i], by, kUnits)));
      }
    }
  }
}

// 32 rows with the basis of a chunk: x[half][j][r] is row 16 half + g (r < 2) or + 8, byte
// 16 c + 2 j + r % 2. basis: of the chunk and lane, [steps][4][32]. scales: of the chunk's bytes
// from 16 c on. most: of rows g, g + 8, ..
__device__ __forceinline__ void multiply(const std::int8_t* rows, int stride, int steps,
                                         const uint4* basis, const float* scales, int g, int c,
                                         float (&x)[2][8][4], float (&most)[4]) {
  int acc[2][8][4];
#pragma unroll
  for (int i = 0; i < 64; ++i) acc[i / 32][i / 4 % 8][i % 4] = kUnitBits;
  uint4 next[2][4];  // of this step and the one after it
#pragma unroll
  for (int i = 0; i < 8; ++i) next[i / 4][i % 4] = __ldg(basis + min(i, 4 * steps - 1) * 32);
#pragma unroll 1
  for (int pair = 0; pair < steps; pair += 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int s = pair + i;
      if (s >= steps) break;
      uint4 b[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        b[j] = next[i][j];
        if (s + 2 < steps) next[i][j] = __ldg(basis + ((s + 2) * 4 + j) * 32);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::int8_t* const low = rows + (16 * half + g) * stride + 32 * s + 4 * c;
        const std::int8_t* const high = low + 8 * stride;
        const std::uint32_t a0 = *reinterpret_cast<const std::uint32_t*>(low);
        const std::uint32_t a1 = *reinterpret_cast<const std::uint32_t*>(high);
        const std::uint32_t a2 = *reinterpret_cast<const std::uint32_t*>(low + 16);
        const std::uint32_t a3 = *reinterpret_cast<const std::uint32_t*>(high + 16);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          mma_s8_s8(acc[half][2 * j], a0, a1, a2, a3, b[j].x, b[j].y);
          mma_s8_s8(acc[half][2 * j + 1], a0, a1, a2, a3, b[j].z, b[j].w);
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 scale = __ldg(reinterpret_cast<const float2*>(scales) + j);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        x[half][j][r] =
            (__int_as_float(acc[half][j][r]) - kUnits) * (r % 2 == 0 ? scale.x : scale.y);
        most[2 * half + r / 2] = fmaxf(most[2 * half + r / 2], fabsf(x[half][j][r]));
      }
    }
  }
}

// Turned rows to working memory.
template <int kWarps>
__device__ __forceinline__ void move_rows(const AttendCall& call, const HeadTile& tile,
                                          const MoveAnchors& anchors, const PrepareMemory& memory,
                                          char* shared) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
  const int steps = key_steps_of(call.key_dim), places = call.chunks * kChunkPlaces;
  // Where there are more chunks than warps, products are made twice instead of being kept.
  const bool wide = call.chunks > kWarps;
  const auto* const basis =
      reinterpret_cast<const uint4*>(call.key_basis +
                                     static_cast<std::int64_t>(tile.head) * places * 32 * steps) +
      lane;
  const float* const scales = call.key_scales + tile.head * places + 16 * c;
  const std::uint8_t* const widths = call.chunk_widths + tile.group * kMaxChunks;
  const auto* const rows = reinterpret_cast<const std::int8_t*>(shared + memory.rows);
  auto* const all_most = reinterpret_cast<float*>(shared + memory.most);
  auto* const all_levels = reinterpret_cast<int*>(shared + memory.levels);
  float x[2][8][4], most[4] = {}, inverse[4];
  int levels[4] = {};
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    const bool rounds = round == 1;
    if (rounds) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
        most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 2));
        if (c == 0) all_most[warp * kMoveRows + 8 * i + g] = most[i];
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float whole = 0.0f;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          whole = fmaxf(whole, all_most[w * kMoveRows + 8 * i + g]);
        }
        inverse[i] = whole > 0.0f ? __fdividef(127.0f, whole) : 0.0f;
      }
    }
#pragma unroll 1
    for (int k = warp; k < call.chunks; k += kWarps) {
      if (!rounds || wide) {
        multiply(rows, memory.row_stride, steps, basis + k * steps * 128, scales + 64 * k, g, c, x,
                 most);
      }
      if (!rounds) continue;
      const int level = (1 << __ldg(widths + k)) - 1;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i / 2, low = i % 2 * 2;
        const auto byte = [&](int j, int r) {
          return __float_as_uint(fmaf(x[half][j][low + r], inverse[i], kUnits));
        };
        std::uint32_t word[4];
        int sum = 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          word[w] =
              __byte_perm(__byte_perm(byte(2 * w, 0), byte(2 * w, 1), 0x0040),
                          __byte_perm(byte(2 * w + 1, 0), byte(2 * w + 1, 1), 0x0040), 0x5410);
          sum = __dp4a(static_cast<int>(word[w]), 0x01010101, sum);
        }
        levels[i] += sum * level;
        // Row 8 i + g: anchor 2 i + g / 4, query g % 4.
        const int a = 2 * i + g / kTileQueries;
        if (a >= anchors.count || g % kTileQueries >= tile.queries) continue;
        const std::int64_t row = ((anchors.slot + a) * call.chunks + k) * call.padded_queries +
                                 tile.group_query + g % kTileQueries;
        *reinterpret_cast<uint4*>(call.moved + row * 64 + 16 * c) =
            make_uint4(word[0], word[1], word[2], word[3]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    levels[i] += __shfl_xor_sync(~0u, levels[i], 1);
    levels[i] += __shfl_xor_sync(~0u, levels[i], 2);
    if (c == 0) all_levels[warp * kMoveRows + 8 * i + g] = levels[i];
  }
  __syncthreads();
  const int row = threadIdx.x, a = row / kTileQueries, n = row % kTileQueries;
  if (row >= kMoveRows || a >= anchors.count || n >= tile.queries) return;
  float whole = 0.0f;
  int sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    whole = fmaxf(whole, all_most[w * kMoveRows + row]);
    sum += all_levels[w * kMoveRows + row];
  }
  const float longest = reinterpret_cast<const float*>(shared + memory.longest)[n];
  const float scale = longest / 127.0f * call.logit_scale * 1.44269504f;
  call.moved_scales[(anchors.slot + a) * call.padded_queries + tile.group_query + n] =
      make_float2(whole / 127.0f * scale, __int_as_float(sum));
}

}  // namespace kvspan::cuda
