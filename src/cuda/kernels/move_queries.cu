// SPDX-License-Identifier: Apache-2.0
// Queries into coefficient space: turned back by the angle of each anchor, rounded to 8 bits, times
// the key rows of B (8 bits too, with a scale for each place), and rounded to 8 bits again with one
// scale for a row, in the order that attend_bands reads.
//
// A block works for one KV head and up to four of its query heads. A tile is 32 rows: kMoveAnchors
// anchors of one item times four queries. A warp holds the basis of one chunk of 64 places in
// registers for all tiles that the block meets. Groups of more chunks than warps read it again for
// each (kWide). Whole numbers become floats and back by adding 1.5 x 2^23, whose lowest bits count
// units: conversions proper would be what limits this kernel.
#include <algorithm>

#include "cuda/attend_call.h"
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/prepare.h"
#include "cuda/kernels/rows.cuh"

namespace kvspan::cuda {
namespace {

constexpr int kQueries = 4, kRows = kMoveAnchors * kQueries;
constexpr float kUnits = 12582912.0f;  // 1.5 x 2^23
constexpr int kUnitBits = 0x4b400000;  // the same, as bits

template <int kSteps, int kWarps>  // kSteps of 32 numbers of a key
struct MoveMemory {
  static constexpr int kStride = 32 * kSteps + 16;
  std::int8_t rows[kRows][kStride];
  float queries[kQueries][32 * kSteps];  // of the item at hand
  float longest[kQueries];  // of a query's pairs, and other numbers: none is larger, however turned
  float most[kWarps][kRows];
  int levels[kWarps][kRows];
};

// The tile of a block at hand.
struct MoveTile {
  int item, anchor;  // the first of its anchors, of those of all items
  int anchors;       // up to kMoveAnchors
  int position;      // of the first anchor
};

// `from`: an item that is not beyond it, or -1.
__device__ __forceinline__ MoveTile find_tile(const AttendCall& call, int tile, int from) {
  int index = max(from, 0);
  while (index + 1 < call.item_count && call.items[index + 1].move_tiles_before <= tile) ++index;
  const AttendItem& item = call.items[index];
  const int first = (tile - item.move_tiles_before) * kMoveAnchors;
  return {index, item.anchors_before + first, min(kMoveAnchors, item.anchors - first),
          (item.first_anchor + first) * call.anchor + call.anchor / 2};
}

// The item's queries as numbers, zeros beyond them; by the whole block.
template <int kSteps, int kWarps>
__device__ __forceinline__ void read_queries(const AttendCall& call, int item, int query,
                                             int queries, MoveMemory<kSteps, kWarps>& memory) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll 4
  for (int i = threadIdx.x; i < kQueries * 32 * kSteps; i += 32 * kWarps) {
    const int n = i / (32 * kSteps), k = i % (32 * kSteps);
    const bool there = n < queries && k < call.key_dim;
    const std::int64_t at = item * call.queries.token_stride +
                            (query + (there ? n : 0)) * call.queries.head_stride + (there ? k : 0);
    const float x = read_number(call.queries.data, at, call.queries.type);
    memory.queries[n][k] = there ? (k < 2 * call.rope_pairs ? x * call.rope_magnitude : x) : 0.0f;
  }
  __syncthreads();
  for (int n = warp; n < kQueries; n += kWarps) {
    float most = 0.0f;
    for (int j = lane; j < call.rope_pairs; j += 32) {
      const PairPlace at = pair_place(j, call.rope_pairs, call.neighbours);
      const float x = memory.queries[n][at.first], y = memory.queries[n][at.second];
      most = fmaxf(most, x * x + y * y);
    }
    for (int i = 2 * call.rope_pairs + lane; i < call.key_dim; i += 32) {
      most = fmaxf(most, memory.queries[n][i] * memory.queries[n][i]);
    }
#pragma unroll
    for (int o = 16; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    if (lane == 0) memory.longest[n] = sqrtf(most);
  }
  __syncthreads();
}

// Rows of the tile, turned and rounded: row 4 a + n is query n at anchor a. Each row by one warp,
// some at once so that they wait for memory together. Rows beyond the last anchor repeat it.
template <int kSteps, int kWarps>
__device__ __forceinline__ void turn_rows(const AttendCall& call, const MoveTile& tile,
                                          MoveMemory<kSteps, kWarps>& memory) {
  constexpr int kPairs = kSteps / 2, kAtOnce = kPairs == 1 ? 6 : kPairs == 2 ? 6 : 3;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int pairs = call.rope_pairs, rotated = 2 * pairs;
#pragma unroll 1
  for (int base = warp; base < kRows; base += kWarps * kAtOnce) {
    float2 t[kAtOnce][kPairs];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int anchor = min((base + n * kWarps) / kQueries, tile.anchors - 1);
      const int turn = (tile.position + anchor * call.anchor) / kTurnStep;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int j = min(32 * i + lane, pairs - 1);
        t[n][i] = make_float2(0.0f, 0.0f);
        if (j >= 0) t[n][i] = __ldg(call.turns + static_cast<std::int64_t>(turn) * pairs + j);
      }
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int row = base + n * kWarps;
      if (row >= kRows) break;
      const float* const query = memory.queries[row % kQueries];
      const float longest = memory.longest[row % kQueries];
      const float by = longest > 0.0f ? __fdividef(127.0f, longest) : 0.0f;
      std::int8_t* const to = memory.rows[row];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int j = 32 * i + lane;
        if (j >= pairs) continue;
        const PairPlace at = pair_place(j, pairs, call.neighbours);
        const float2 turn = t[n][i];
        const float x = query[at.first], y = query[at.second];
        const float first = x * turn.x + y * turn.y, second = y * turn.x - x * turn.y;
        to[at.first] = static_cast<std::int8_t>(__float_as_int(fmaf(first, by, kUnits)));
        to[at.second] = static_cast<std::int8_t>(__float_as_int(fmaf(second, by, kUnits)));
      }
      for (int i = rotated + lane; i < 32 * kSteps; i += 32) {
        to[i] = static_cast<std::int8_t>(__float_as_int(fmaf(query[i], by, kUnits)));
      }
    }
  }
}

template <int kSteps>
__device__ __forceinline__ void load_basis(const std::int8_t* head, int chunk, int lane,
                                           uint2 (&basis)[8][kSteps]) {
  const uint2* const from = reinterpret_cast<const uint2*>(head) +
                            static_cast<std::int64_t>(chunk) * 8 * kSteps * 32 + lane;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) basis[j][s] = __ldg(from + (j * kSteps + s) * 32);
  }
}

// The rows with the basis of a chunk: x[half][j][r] is row 16 half + g (r < 2) or + 8, byte
// 16 c + 2 j + r % 2. scales: of the chunk's bytes from 16 c on. most: of rows g, g + 8, ..
template <int kSteps, int kWarps>
__device__ __forceinline__ void multiply(const MoveMemory<kSteps, kWarps>& memory,
                                         const uint2 (&basis)[8][kSteps], const float* scales,
                                         int g, int c, float (&x)[2][8][4], float (&most)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int acc[8][4];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int r = 0; r < 4; ++r) acc[j][r] = kUnitBits;
    }
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
        mma_s8_s8(acc[j], a0, a1, a2, a3, basis[j][s].x, basis[j][s].y);
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 scale = __ldg(reinterpret_cast<const float2*>(scales) + j);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        x[half][j][r] = (__int_as_float(acc[j][r]) - kUnits) * (r % 2 == 0 ? scale.x : scale.y);
        most[2 * half + r / 2] = fmaxf(most[2 * half + r / 2], fabsf(x[half][j][r]));
      }
    }
  }
}

// kBlocks: of a multiprocessor.
template <int kSteps, int kWarps, int kBlocks, bool kWide>
__global__ void __launch_bounds__(32 * kWarps, kBlocks)
    move_queries_kernel(const __grid_constant__ AttendCall call, int blocks_of_head,
                        int tiles_of_block) {
  __shared__ MoveMemory<kSteps, kWarps> memory;
  ask_for_parameters(call);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
  const int repeats = call.query_heads / call.kv_heads;
  const int query_tiles = (repeats + kQueries - 1) / kQueries;
  const int head_tile = static_cast<int>(blockIdx.x) / blocks_of_head;
  const int head = head_tile / query_tiles, first = head_tile % query_tiles * kQueries;
  const int queries = min(kQueries, repeats - first);
  const int begin = static_cast<int>(blockIdx.x) % blocks_of_head * tiles_of_block;
  const int end = min(begin + tiles_of_block, call.total_move_tiles);
  const int group = head / call.group_heads, within = head % call.group_heads;
  const int padded = call.padded_queries, places = call.chunks * kChunkPlaces;
  const std::int8_t* const head_basis =
      call.key_basis + static_cast<std::int64_t>(head) * places * 32 * kSteps;
  const float* const head_scales = call.key_scales + head * places + 16 * c;
  const std::uint8_t* const widths = call.chunk_widths + group * kMaxChunks;
  const int query_row = within * repeats + first;  // of the group's padded queries
  uint2 basis[8][kSteps];
  float x[2][8][4];
  if (!kWide && warp < call.chunks) load_basis<kSteps>(head_basis, warp, lane, basis);

  int item = -1;
#pragma unroll 1
  for (int tile = begin; tile < end; ++tile) {
    const MoveTile at = find_tile(call, tile, item);
    __syncthreads();  // what was written before has been read
    if (at.item != item) {
      item = at.item;
      read_queries<kSteps, kWarps>(call, item, head * repeats + first, queries, memory);
    }
    turn_rows<kSteps, kWarps>(call, at, memory);
    __syncthreads();
    float most[4] = {};
    for (int k = warp; k < call.chunks; k += kWarps) {
      if (kWide) load_basis<kSteps>(head_basis, k, lane, basis);
      multiply<kSteps, kWarps>(memory, basis, head_scales + 64 * k, g, c, x, most);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
      most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 2));
      if (c == 0) memory.most[warp][8 * i + g] = most[i];
    }
    __syncthreads();
    float inverse[4];
    int levels[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float whole = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) whole = fmaxf(whole, memory.most[w][8 * i + g]);
      inverse[i] = whole > 0.0f ? 127.0f / whole : 0.0f;
    }
    for (int k = warp; k < call.chunks; k += kWarps) {
      if (kWide) {
        float again[4];
        load_basis<kSteps>(head_basis, k, lane, basis);
        multiply<kSteps, kWarps>(memory, basis, head_scales + 64 * k, g, c, x, again);
      }
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
        if (2 * i + g / kQueries >= at.anchors || g % kQueries >= queries) continue;
        const std::int64_t row = ((static_cast<std::int64_t>(group) * call.total_anchors +
                                   at.anchor + 2 * i + g / kQueries) *
                                      call.chunks +
                                  k) *
                                     padded +
                                 query_row + g % kQueries;
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
    const int row = threadIdx.x;
    if (row < kRows && row / kQueries < at.anchors && row % kQueries < queries) {
      float whole = 0.0f;
      int sum = 0;
      for (int w = 0; w < kWarps; ++w) {
        whole = fmaxf(whole, memory.most[w][row]);
        sum += memory.levels[w][row];
      }
      const std::int64_t to =
          (static_cast<std::int64_t>(group) * call.total_anchors + at.anchor + row / kQueries) *
              padded +
          query_row + row % kQueries;
      const float scale = memory.longest[row % kQueries] / 127.0f * call.logit_scale * 1.44269504f;
      call.moved_scales[to] = make_float2(whole / 127.0f * scale, __int_as_float(sum));
    }
  }
}

template <int kSteps, int kWarps, int kBlocks, bool kWide>
cudaError_t launch(const AttendCall& call, int processors, bool beside, cudaStream_t stream) {
  const int repeats = call.query_heads / call.kv_heads;
  const int head_tiles = call.kv_heads * ((repeats + kQueries - 1) / kQueries);
  // One block for each place that there is, equally long ones.
  const int most = std::max(1, kBlocks * processors / head_tiles);
  const int each = (call.total_move_tiles + most - 1) / most;
  const int blocks_of_head = (call.total_move_tiles + each - 1) / each;
  return launch_beside(beside, move_queries_kernel<kSteps, kWarps, kBlocks, kWide>,
                       blocks_of_head * head_tiles, 32 * kWarps, 0, stream, call, blocks_of_head,
                       each);
}

template <int kSteps>
cudaError_t launch_for(const AttendCall& call, int processors, bool beside, cudaStream_t stream) {
  constexpr int kBlocks = kSteps <= 4 ? 2 : 1;
  if (call.chunks <= 4) return launch<kSteps, 4, kBlocks, false>(call, processors, beside, stream);
  if (call.chunks <= 6) return launch<kSteps, 6, kBlocks, false>(call, processors, beside, stream);
  if (call.chunks <= 8) return launch<kSteps, 8, 1, false>(call, processors, beside, stream);
  return launch<kSteps, 8, 1, true>(call, processors, beside, stream);
}

}  // namespace

cudaError_t launch_move_queries(const AttendCall& call, int processors, bool beside,
                                cudaStream_t stream) {
  if (call.groups == 0 || call.total_anchors == 0) return cudaSuccess;
  const int dim = std::max(call.key_dim, call.value_dim);
  if (dim <= 64) return launch_for<2>(call, processors, beside, stream);
  if (dim <= 128) return launch_for<4>(call, processors, beside, stream);
  if (dim <= 256) return launch_for<8>(call, processors, beside, stream);
  return cudaErrorInvalidValue;
}

}  // namespace kvspan::cuda
