// SPDX-License-Identifier: Apache-2.0
// Attention to full-rank f16 rows: the ends of a coded sequence, or all of one that is not coded.
// A block takes one KV head, up to four of its query heads and a part of the rows; kLanes threads
// share a row, 8 numbers each. Sums and softmax in f32; weights are not rounded.
#include <algorithm>

#include "cuda/attend_call.h"
#include "cuda/kernels/attend_bands.cuh"
#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/prepare.h"
#include "cuda/kernels/rows.cuh"

namespace kvspan::cuda {
namespace {

constexpr int kRowQueries = 4;  // query heads of a block
constexpr int kRowWarps = 4;
constexpr int kLaneNumbers = 8;

struct RowsMemory {
  float2 states[kRowWarps][kRowQueries];
  float sums[kRowWarps][kRowQueries][256];
};

// 8 numbers at `from`, zeros from `dim` on; dim and from are multiples of 8.
__device__ __forceinline__ uint4 read_halves(const __half* row, int from, int dim) {
  if (from >= dim) return make_uint4(0, 0, 0, 0);
  return __ldg(reinterpret_cast<const uint4*>(row + from));
}

__device__ __forceinline__ void widen(const uint4& halves, float (&x)[kLaneNumbers]) {
  const __half2* const h = reinterpret_cast<const __half2*>(&halves);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 f = __half22float2(h[i]);
    x[2 * i] = f.x;
    x[2 * i + 1] = f.y;
  }
}

// Query heads first .. of the item's KV head `head`, over its part `part` of the rows.
template <int kLanes>
__device__ void attend_rows(const AttendCall& call, int index, int part, int head, int first,
                            RowsMemory& memory) {
  constexpr int kTogether = 32 / kLanes;  // rows that a warp reads at once
  const AttendItem& item = call.items[index];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int repeats = call.query_heads / call.kv_heads, queries = min(kRowQueries, repeats - first);
  const int at = lane % kLanes * kLaneNumbers;
  const int rows = item.before.size() + item.after.size();
  const int per_part = (rows + item.row_parts - 1) / item.row_parts;
  const int begin = part * per_part, end = min(rows, begin + per_part);

  float q[kRowQueries][kLaneNumbers], sum[kRowQueries][kLaneNumbers];
  float most[kRowQueries], weights[kRowQueries];
#pragma unroll
  for (int i = 0; i < kRowQueries; ++i) {
    most[i] = kNothing;
    weights[i] = 0.0f;
    const std::int64_t from = index * call.queries.token_stride +
                              (head * repeats + first + i) * call.queries.head_stride + at;
#pragma unroll
    for (int k = 0; k < kLaneNumbers; ++k) {
      sum[i][k] = q[i][k] = 0.0f;
      if (i < queries && at + k < call.key_dim) {
        q[i][k] = read_number(call.queries.data, from + k, call.queries.type) * call.logit_scale *
                  1.44269504f;
      }
    }
  }
  // Keys and values of the rows that come next are on their way while these are attended to.
  uint4 keys, values;
  const auto ask_for = [&](int base) {
    const int i = min(base + lane / kLanes, end - 1);
    const int position =
        i < item.before.size() ? item.before.first + i : item.after.first + i - item.before.size();
    const std::int64_t page =
        row_page_at(__ldg(item.row_pages + position / kRowPageTokens), call.row_page_halves,
                    call.row_layer_halves, head, call.key_dim, call.value_dim);
    const int slot = position % kRowPageTokens;
    keys = read_halves(call.row_pool + page + slot * call.key_dim, at, call.key_dim);
    values =
        read_halves(call.row_pool + page + kRowPageTokens * call.key_dim + slot * call.value_dim,
                    at, call.value_dim);
  };
  if (begin + warp * kTogether < end) ask_for(begin + warp * kTogether);
#pragma unroll 1
  for (int base = begin + warp * kTogether; base < end; base += kRowWarps * kTogether) {
    const bool there = base + lane / kLanes < end;
    float x[kLaneNumbers];
    widen(keys, x);
    const uint4 value = values;
    if (base + kRowWarps * kTogether < end) ask_for(base + kRowWarps * kTogether);
    float score[kRowQueries];
#pragma unroll
    for (int n = 0; n < kRowQueries; ++n) {
      score[n] = 0.0f;
#pragma unroll
      for (int k = 0; k < kLaneNumbers; ++k) score[n] = fmaf(q[n][k], x[k], score[n]);
#pragma unroll
      for (int o = 1; o < kLanes; o *= 2) score[n] += __shfl_xor_sync(~0u, score[n], o);
    }
    widen(value, x);
#pragma unroll
    for (int n = 0; n < kRowQueries; ++n) {
      const float s = there ? capped(score[n], call.soft_cap) : kUnseen;
      if (s > most[n]) {
        const float factor = exp2_approx(most[n] - s);
        most[n] = s;
        weights[n] *= factor;
#pragma unroll
        for (int k = 0; k < kLaneNumbers; ++k) sum[n][k] *= factor;
      }
      const float w = exp2_approx(s - most[n]);
      weights[n] += w;
#pragma unroll
      for (int k = 0; k < kLaneNumbers; ++k) sum[n][k] = fmaf(w, x[k], sum[n][k]);
    }
  }
  // Rows that a warp read at once, then warps.
#pragma unroll
  for (int n = 0; n < kRowQueries; ++n) {
    float whole = most[n];
#pragma unroll
    for (int o = kLanes; o < 32; o *= 2) whole = fmaxf(whole, __shfl_xor_sync(~0u, whole, o));
    const float factor = exp2_approx(most[n] - whole);
    weights[n] *= factor;
#pragma unroll
    for (int k = 0; k < kLaneNumbers; ++k) sum[n][k] *= factor;
#pragma unroll
    for (int o = kLanes; o < 32; o *= 2) {
      weights[n] += __shfl_xor_sync(~0u, weights[n], o);
#pragma unroll
      for (int k = 0; k < kLaneNumbers; ++k) sum[n][k] += __shfl_xor_sync(~0u, sum[n][k], o);
    }
    if (lane < kLanes) {
#pragma unroll
      for (int k = 0; k < kLaneNumbers; ++k) memory.sums[warp][n][at + k] = sum[n][k];
    }
    if (lane == 0) memory.states[warp][n] = make_float2(whole, weights[n]);
  }
  __syncthreads();
  const std::int64_t to =
      static_cast<std::int64_t>(item.row_parts_before + part) * call.query_heads + head * repeats +
      first;
  for (int i = threadIdx.x; i < queries * call.value_dim; i += 32 * kRowWarps) {
    const int n = i / call.value_dim, k = i % call.value_dim;
    float whole = kNothing, total = 0.0f, x = 0.0f;
    for (int w = 0; w < kRowWarps; ++w) whole = fmaxf(whole, memory.states[w][n].x);
    for (int w = 0; w < kRowWarps; ++w) {
      const float factor = exp2_approx(memory.states[w][n].x - whole);
      total += memory.states[w][n].y * factor;
      x += memory.sums[w][n][k] * factor;
    }
    call.row_sums[(to + n) * call.value_dim + k] = x;
    if (k == 0) call.row_states[to + n] = make_float2(whole, total);
  }
}

template <int kLanes>
__global__ void __launch_bounds__(32 * kRowWarps)
    attend_rows_kernel(const __grid_constant__ AttendCall call) {
  cudaTriggerProgrammaticLaunchCompletion();
  ask_for_parameters(call);
  __shared__ RowsMemory memory;
  const int repeats = call.query_heads / call.kv_heads;
  const int tiles = (repeats + kRowQueries - 1) / kRowQueries;
  const int part = static_cast<int>(blockIdx.x) / (tiles * call.kv_heads);
  const int rest = static_cast<int>(blockIdx.x) % (tiles * call.kv_heads);
  int item = 0;
  while (item + 1 < call.item_count && call.items[item + 1].row_parts_before <= part) ++item;
  attend_rows<kLanes>(call, item, part - call.items[item].row_parts_before, rest / tiles,
                      rest % tiles * kRowQueries, memory);
}

}  // namespace

cudaError_t launch_attend_rows(const AttendCall& call, bool beside, cudaStream_t stream) {
  const int repeats = call.query_heads / call.kv_heads;
  const int blocks =
      call.total_row_parts * call.kv_heads * ((repeats + kRowQueries - 1) / kRowQueries);
  if (blocks == 0) return cudaSuccess;
  const int dim = std::max(call.key_dim, call.value_dim);
  const auto kernel = dim <= 64    ? attend_rows_kernel<8>
                      : dim <= 128 ? attend_rows_kernel<16>
                                   : attend_rows_kernel<32>;
  if (dim > 256) return cudaErrorInvalidValue;
  return launch_beside(beside, kernel, blocks, 32 * kRowWarps, 0, stream, call);
}

}  // namespace kvspan::cuda
