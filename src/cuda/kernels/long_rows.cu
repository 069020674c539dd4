// SPDX-License-Identifier: Apache-2.0
// A block takes one KV head, up to eight of its query heads, a part of the rows and up to 128
// numbers of values; each of its warps goes through its share of the part, 16 rows at a time. What
// such a step waits for is asked for before: queries, split into two f16 numbers each, lie in
// shared memory in the order of the first product's operands, where rows lie is looked up four
// steps ahead, and their lines are on their way two steps ahead.
#include "cuda/kernels/long_rows.h"

#include "cuda/kernels/attend_rows.cuh"
#include "cuda/kernels/overlapping_launch.h"

namespace kvspan::cuda {
namespace {

constexpr int kWarps = kPrepareWarps;
static_assert(kWarps == kRowQueries && kRowValues == 4 * 32);  // each warp merges a query

// What warps have of a part.
struct WarpResults {
  float2 states[kWarps][kRowQueries];
  float sums[kWarps][kRowQueries][kRowValues];
};

// kSteps: of 32 numbers of a key.
template <int kSteps>
__global__ void __launch_bounds__(32 * kWarps, 2)
    long_rows_kernel(const __grid_constant__ AttendCall call,
                     const __grid_constant__ NewRows fresh) {
  __shared__ WarpResults results;
  __shared__ uint4 split[kSteps][2][32];  // high and low halves of queries, by lane
  cudaTriggerProgrammaticLaunchCompletion();
  ask_for_parameters(call);
  const AttendPlan& plan = call.plan();
  int unit = blockIdx.x;
  if (unit >= row_units(call, plan.total_row_parts)) return;
  const int lane = threadIdx.x & 31, warp = static_cast<int>(threadIdx.x) >> 5, g = lane >> 2,
            c = lane & 3;
  const int repeats = call.query_heads / call.kv_heads;
  const int query_tiles = (repeats + kRowQueries - 1) / kRowQueries;
  const int value_tiles = (call.value_dim + kRowValues - 1) / kRowValues;
  const int value_tile = unit % value_tiles;
  unit /= value_tiles;
  const int first = unit % query_tiles * kRowQueries;
  unit /= query_tiles;
  const int head = unit % call.kv_heads, part = unit / call.kv_heads;
  int index = 0;
  while (index + 1 < plan.item_count && plan.row_parts_before[index + 1] <= part) ++index;
  const AttendItem& item = plan.items[index];
  const int queries = min(kRowQueries, repeats - first);
  const int before = item.before.size(), rows = before + item.after.size();
  const int tiles = (rows + kRowTile - 1) / kRowTile, row_parts = item.row_parts;
  const int share = (part - plan.row_parts_before[index]) * kWarps + warp;
  const auto cut = [&](int p) {
    return static_cast<int>(static_cast<std::int64_t>(tiles) * p / (row_parts * kWarps));
  };
  const int begin = cut(share), end = cut(share + 1);
  const std::int32_t* const pages = item.row_pages;
  const int skipped = item.before.first, later = item.after.first - before;
  const auto position_of = [&](int i) { return i < before ? skipped + i : later + i; };
  // Of the lane's row of two tiles: its page.
  const auto page_of = [&](int tile) {
    const int i = min(kRowTile * tile + lane, rows - 1);
    return max(0, __ldcg(pages + position_of(i) / kRowPageTokens));
  };
  const int key_dim = call.key_dim, value_dim = call.value_dim;
  const __half* const memory = reinterpret_cast<const __half*>(call.pages) +
                               row_page_at(0, call.row_layer_halves, head, key_dim, value_dim);
  const auto key_at = [&](int page, int i) {
    return memory + std::int64_t{page} * (kPageUnit / 2) +
           position_of(min(i, rows - 1)) % kRowPageTokens * key_dim;
  };
  const auto value_at = [&](int page, int i) {
    return memory + std::int64_t{page} * (kPageUnit / 2) + kRowPageTokens * key_dim +
           position_of(min(i, rows - 1)) % kRowPageTokens * value_dim;
  };
  const int values = kRowValues * value_tile, value_end = min(values + kRowValues, value_dim);
  const auto prefetch_rows = [&](int page, int tile) {
    const int i = kRowTile * tile + lane;
    if (i >= min(kRowTile * end, rows)) return;
#pragma unroll 1
    for (int k = 0; k < key_dim; k += 64) prefetch(key_at(page, i) + k);
#pragma unroll 1
    for (int k = values; k < value_end; k += 64) prefetch(value_at(page, i) + k);
  };
  int own_page = page_of(begin), next_page = page_of(begin + 2), later_page = page_of(begin + 4);
  prefetch_rows(own_page, begin);
  cudaGridDependencySynchronize();

  // Whoever attends to the last row writes it before, be it several blocks.
  if (fresh.there && end == tiles) {
    const int page = max(0, __ldcg(pages + position_of(rows - 1) / kRowPageTokens));
    auto* const key = const_cast<__half*>(key_at(page, rows - 1));
    auto* const value = const_cast<__half*>(value_at(page, rows - 1));
    const std::int64_t k = index * fresh.keys.token_stride + head * fresh.keys.head_stride;
    const std::int64_t v = index * fresh.values.token_stride + head * fresh.values.head_stride;
    for (int i = lane; i < key_dim; i += 32) {
      key[i] = __float2half(read_number(fresh.keys.data, k + i, fresh.keys.type));
    }
    for (int i = lane; i < value_dim; i += 32) {
      value[i] = __float2half(read_number(fresh.values.data, v + i, fresh.values.type));
    }
    __threadfence_block();
    __syncwarp();
  }
  const float scale = g < queries ? call.logit_scale * 1.44269504f : 0.0f;
  const std::int64_t own_query =
      index * call.queries.token_stride +
      (head * repeats + first + min(g, queries - 1)) * call.queries.head_stride;
#pragma unroll 1
  for (int s = warp; s < kSteps; s += kWarps) {
    std::uint32_t high[4] = {}, low[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int k = 32 * s + 8 * c + 2 * i;
      const float2 x = k < key_dim ? read_two(call.queries.data, own_query + k, call.queries.type)
                                   : make_float2(0.0f, 0.0f);
      split_halves(x.x * scale, x.y * scale, high[i], low[i]);
    }
    split[s][0][lane] = make_uint4(high[0], high[1], high[2], high[3]);
    split[s][1][lane] = make_uint4(low[0], low[1], low[2], low[3]);
  }
  __syncthreads();

  float sums[2][4][4] = {};  // [64 values][j]: values 8 g + j and 8 g + 4 + j, queries 2 c, 2 c + 1
  float most = kNothing, weights = 0.0f;  // of query g
#pragma unroll 1
  for (int tile = begin; tile < end; ++tile) {
    const int base = tile * kRowTile, upper = (tile - begin) % 2 * kRowTile;
    if (upper == 0) {
      if (tile > begin)
        own_page = next_page, next_page = later_page, later_page = page_of(tile + 4);
      prefetch_rows(next_page, tile + 2);
    }
    float score[2][4] = {};  // [8 rows]: rows 2 c and 2 c + 1 of query g; the others are nothing
    const int low_page = __shfl_sync(~0u, own_page, upper + g),
              high_page = __shfl_sync(~0u, own_page, upper + 8 + g);
    const __half* const keys[2] = {key_at(low_page, base + g) + 8 * c,
                                   key_at(high_page, base + 8 + g) + 8 * c};
#pragma unroll(kSteps < 4 ? kSteps : 4)
    for (int s = 0; s < kSteps; ++s) {
      const uint4 q = split[s][0][lane], q_low = split[s][1][lane];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint4 x = make_uint4(0, 0, 0, 0);
        if (32 * s + 8 * c < key_dim)
          x = __ldcg(reinterpret_cast<const uint4*>(keys[half] + 32 * s));
        mma_upper(score[half], q.x, q.y, x.x, x.y);
        mma_upper(score[half], q.z, q.w, x.z, x.w);
        mma_upper(score[half], q_low.x, q_low.y, x.x, x.y);
        mma_upper(score[half], q_low.z, q_low.w, x.z, x.w);
      }
    }
    uint4 x[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 8 * (i / 2) + 2 * c + i % 2;
      const __half* const value =
          value_at(__shfl_sync(~0u, own_page, upper + row), base + row) + values;
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        const int at = 64 * v + 8 * g;
        x[v][i] = values + at < value_dim ? __ldcg(reinterpret_cast<const uint4*>(value + at))
                                          : make_uint4(0, 0, 0, 0);
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
      const float a = exp2_approx(score[half][0] - most), b = exp2_approx(score[half][1] - most);
      weights += a + b;
      split_halves(a, b, w[half], w_low[half]);
    }
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      // Numbers 2 i and 2 i + 1 of two rows: low or high halves of both.
      const auto two = [&](int rows8, int number) {
        const std::uint32_t a = (&x[v][2 * rows8].x)[number / 2],
                            b = (&x[v][2 * rows8 + 1].x)[number / 2];
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

  if (c == 0) results.states[warp][g] = make_float2(most, weights);
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    results.sums[warp][2 * c + i % 2][64 * (i / 16) + 8 * g + i / 4 % 4 + i % 4 / 2 * 4] =
        sums[i / 16][i / 4 % 4][i % 4];
  }
  __syncthreads();
  const int query = warp;
  if (query >= queries) return;
  float whole = kNothing, weight = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) whole = fmaxf(whole, results.states[w][query].x);
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float2 own = results.states[w][query];
    const float by = exp2_approx(own.x - whole);
    const float4 of = *reinterpret_cast<const float4*>(&results.sums[w][query][4 * lane]);
    weight = fmaf(by, own.y, weight);
    sum = make_float4(fmaf(by, of.x, sum.x), fmaf(by, of.y, sum.y), fmaf(by, of.z, sum.z),
                      fmaf(by, of.w, sum.w));
  }
  const std::int64_t to =
      static_cast<std::int64_t>(part) * call.query_heads + head * repeats + first + query;
  if (lane == 0 && value_tile == 0) call.row_states[to] = make_float2(whole, weight);
  if (values + 4 * lane < value_dim) {
    *reinterpret_cast<float4*>(call.row_sums + to * value_dim + values + 4 * lane) = sum;
  }
}

}  // namespace

cudaError_t launch_long_rows(const AttendCall& call, const PlanCapacity& capacity,
                             const NewRows& fresh, bool overlaps, cudaStream_t stream) {
  const int blocks = row_units(call, capacity.row_parts);
  if (blocks == 0) return cudaSuccess;
  const auto kernel = call.key_dim <= 64    ? long_rows_kernel<2>
                      : call.key_dim <= 128 ? long_rows_kernel<4>
                                            : long_rows_kernel<8>;
  const OverlappingLaunch launch(dim3(static_cast<unsigned>(blocks)), dim3(32 * kWarps), 0, stream,
                                 overlaps);
  return cudaLaunchKernelEx(launch.config(), kernel, call, fresh);
}

}  // namespace kvspan::cuda
