// SPDX-License-Identifier: Apache-2.0
// A cluster of kSlices blocks works for one item and one group of heads: each block merges the
// parts of its share of the components, hands them to the others, and makes its share of the values
// from all of them. Merging follows the log-sum-exp of the parts; empty parts count nothing.
#include "cuda/kernels/finish.h"

#include <cooperative_groups.h>

#include <algorithm>

#include "cuda/kernels/attend_bands.cuh"
#include "cuda/kernels/rows.cuh"

namespace kvspan::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kSlices = 8, kThreads = 256;
constexpr int kQueriesAtOnce = 4, kNumbers = 4;  // of a warp's work

// Shares of parts of codes and of rows, their merged states, the group's coefficients.
struct Memory {
  int shares, row_shares, states, row_states, coefficients, vectors, bytes;
  __host__ __device__ Memory(int parts, int row_parts, int queries, int padded, int places) {
    shares = 0;
    row_shares = shares + parts * padded * 4;
    states = (row_shares + row_parts * queries * 4 + 7) / 8 * 8;
    row_states = states + padded * 8;
    coefficients = (row_states + queries * 8 + 15) / 16 * 16;
    vectors = coefficients + padded * places * 4;
    bytes = vectors + kThreads * 32;
  }
};

// What each part counts for each query, and their maximum and sum. States of a part lie `stride`
// apart. of_means: parts hold means, not sums.
__device__ void share_out(const float2* states, int parts, int stride, int queries, bool of_means,
                          float* shares, float2* merged) {
  const int lane = threadIdx.x & 31;
  for (int query = threadIdx.x >> 5; query < queries; query += kThreads / 32) {
    float most = kNothing, sum = 0.0f;
    for (int p = lane; p < parts; p += 32) most = fmaxf(most, states[p * stride + query].x);
    for (int o = 16; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    for (int p = lane; p < parts; p += 32) {
      const float2 state = states[p * stride + query];
      const float share = exp2_approx(state.x - most) * (of_means ? state.y : 1.0f);
      shares[p * queries + query] = share;
      sum += of_means ? share : share * state.y;
    }
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    if (lane == 0) merged[query] = make_float2(most, sum);
  }
}

// This block's share of the components, merged and divided by the sum of weights, times steps.
// vectors: of 8 numbers; [kThreads][2].
__device__ void merge_slice(const AttendCall& call, const AttendItem& item, int group, int rank,
                            const float* shares, const float2* merged, float4* vectors,
                            const cg::cluster_group& cluster, float* coefficients) {
  const int padded = call.padded_queries, places = call.chunks * kChunkPlaces;
  const int slice = places / kSlices, count = padded * slice / 8;
  const __half* const means =
      call.part_means +
      (static_cast<std::int64_t>(group) * call.total_parts + item.parts_before) * padded * places;
  const float* const steps = call.steps + group * places;
  for (int base = 0; base < count; base += kThreads) {
    const int here = min(kThreads, count - base), helpers = kThreads / here;
    const int v = base + static_cast<int>(threadIdx.x) % here;
    const int helper = static_cast<int>(threadIdx.x) / here;
    const int query = v / (slice / 8), place = rank * slice + v % (slice / 8) * 8;
    float sum[8] = {};
    if (helper < helpers) {
      const __half* const from = means + static_cast<std::int64_t>(query) * places + place;
#pragma unroll 8
      for (int p = helper; p < item.parts; p += helpers) {
        const float share = shares[p * padded + query];
        const uint4 raw = __ldcg(
            reinterpret_cast<const uint4*>(from + static_cast<std::int64_t>(p) * padded * places));
        const __half2* const x = reinterpret_cast<const __half2*>(&raw);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 f = __half22float2(x[i]);
          sum[2 * i] = fmaf(share, f.x, sum[2 * i]);
          sum[2 * i + 1] = fmaf(share, f.y, sum[2 * i + 1]);
        }
      }
    }
    vectors[2 * threadIdx.x] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    vectors[2 * threadIdx.x + 1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
    __syncthreads();
    // A thread for each half vector and block of the cluster that gets it.
    for (int i = threadIdx.x; i < 2 * here * kSlices; i += kThreads) {
      const int half = i % (2 * here), to = i / (2 * here);
      const int of = base + half / 2, its_query = of / (slice / 8);
      const int its_place = rank * slice + of % (slice / 8) * 8 + half % 2 * 4;
      float4 x = vectors[half];
      for (int h = 1; h < helpers; ++h) {
        const float4 y = vectors[2 * h * here + half];
        x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
      }
      const float inverse = merged[its_query].y > 0.0f ? 1.0f / merged[its_query].y : 0.0f;
      const float4 step = __ldg(reinterpret_cast<const float4*>(steps + its_place));
      x.x *= inverse * step.x, x.y *= inverse * step.y;
      x.z *= inverse * step.z, x.w *= inverse * step.w;
      *reinterpret_cast<float4*>(cluster.map_shared_rank(coefficients, to) + its_query * places +
                                 its_place) = x;
    }
    __syncthreads();
  }
}

// Numbers i .. i + kNumbers - 1 of the values of the group's heads (all of one head), of query
// heads first .. of that head. Lane 4 n + j ends with number j of query n.
__device__ __forceinline__ void make_values(const AttendCall& call, const AttendItem& item,
                                            int group, int i, int first, bool coded,
                                            const float* row_shares, const float2* row_merged,
                                            const float2* merged, const float* coefficients,
                                            int index) {
  const int lane = threadIdx.x & 31;
  const int heads = call.groups > 0 ? call.group_heads : 1;
  const int repeats = call.query_heads / call.kv_heads, places = call.chunks * kChunkPlaces;
  const int queries = heads * repeats, first_query_head = group * queries;
  const int within = i / call.value_dim, k = i % call.value_dim;
  const int count = min(kQueriesAtOnce, repeats - first);
  // Lanes 0 .. 15 have one number of one query each, the others share parts of rows with them.
  const int own_query = lane / kNumbers % kQueriesAtOnce, own = lane % kNumbers;
  const int query = within * repeats + first + min(own_query, count - 1);
  const float2 scale = coded ? __ldg(call.value_scales + group * heads * call.value_dim + i + own)
                             : make_float2(0.0f, 0.0f);
  float rows = 0.0f;
  {
    const float* const from = call.row_sums +
                              (static_cast<std::int64_t>(item.row_parts_before) * call.query_heads +
                               first_query_head + query) *
                                  call.value_dim +
                              k + own;
    const std::int64_t stride = static_cast<std::int64_t>(call.query_heads) * call.value_dim;
#pragma unroll 8
    for (int p = lane / 16; p < item.row_parts; p += 2) {
      rows = fmaf(row_shares[p * queries + query], __ldcg(from + p * stride), rows);
    }
    rows += __shfl_xor_sync(~0u, rows, 16);
  }
  float value = 0.0f;
  if (coded) {
    float dot[kQueriesAtOnce][kNumbers] = {};
    const __half* const basis =
        call.value_basis + (static_cast<std::int64_t>(group) * heads * call.value_dim + i) * places;
#pragma unroll 4
    for (int p = 4 * lane; p < places; p += 128) {
      float4 b[kNumbers];
#pragma unroll
      for (int j = 0; j < kNumbers; ++j) {
        const uint2 raw = __ldg(reinterpret_cast<const uint2*>(basis + j * places + p));
        const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&raw.x));
        const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&raw.y));
        b[j] = make_float4(low.x, low.y, high.x, high.y);
      }
#pragma unroll
      for (int n = 0; n < kQueriesAtOnce; ++n) {
        const float4 x = *reinterpret_cast<const float4*>(
            coefficients + (within * repeats + first + min(n, count - 1)) * places + p);
#pragma unroll
        for (int j = 0; j < kNumbers; ++j) {
          dot[n][j] += b[j].x * x.x + b[j].y * x.y + b[j].z * x.z + b[j].w * x.w;
        }
      }
    }
    // 16 sums over 32 lanes: each exchange halves what a lane still has to add, and after four lane
    // l and l ^ 16 have the sum l % 16.
    float left[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) left[j] = dot[j / kNumbers][j % kNumbers];
#pragma unroll
    for (int o = 8; o > 0; o /= 2) {
      const bool upper = (lane & o) != 0;
#pragma unroll
      for (int j = 0; j < o; ++j) {
        const float give = upper ? left[j] : left[j + o], keep = upper ? left[j + o] : left[j];
        left[j] = keep + __shfl_xor_sync(~0u, give, o);
      }
    }
    value = left[0] + __shfl_xor_sync(~0u, left[0], 16);
    value = value * scale.x + scale.y;
  }
  if (lane >= 16 || own_query >= count) return;
  const float2 of_codes = coded ? merged[query] : make_float2(kNothing, 0.0f);
  const float2 of_rows = row_merged[query];
  const float most = fmaxf(of_codes.x, of_rows.x);
  const float codes = exp2_approx(of_codes.x - most) * of_codes.y;
  const float row_factor = exp2_approx(of_rows.x - most);
  const float total = codes + row_factor * of_rows.y;
  const float sum = codes * value + row_factor * rows;
  write_number(
      call.out,
      index * call.out_token_stride + (first_query_head + query) * call.out_head_stride + k + own,
      call.out_type, total > 0.0f ? sum / total : 0.0f);
}

__global__ void __launch_bounds__(kThreads, 3)
    finish_kernel(const __grid_constant__ AttendCall call, const Memory memory) {
  extern __shared__ __align__(16) char shared[];
  ask_for_parameters(call);
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int group = blockIdx.y, index = blockIdx.z;
  const AttendItem& item = call.items[index];
  const bool coded = call.groups > 0 && item.parts > 0;
  const int heads = call.groups > 0 ? call.group_heads : 1;
  const int repeats = call.query_heads / call.kv_heads;
  const int queries = heads * repeats, first_query_head = group * queries;
  float* const coefficients = reinterpret_cast<float*>(shared + memory.coefficients);
  float2* const merged = reinterpret_cast<float2*>(shared + memory.states);
  float2* const row_merged = reinterpret_cast<float2*>(shared + memory.row_states);
  float* const row_shares = reinterpret_cast<float*>(shared + memory.row_shares);
  cluster.sync();  // all are there to be written to
  share_out(call.row_states + static_cast<std::int64_t>(item.row_parts_before) * call.query_heads +
                first_query_head,
            item.row_parts, call.query_heads, queries, false, row_shares, row_merged);
  if (coded) {
    float* const shares = reinterpret_cast<float*>(shared + memory.shares);
    share_out(call.part_states +
                  (static_cast<std::int64_t>(group) * call.total_parts + item.parts_before) *
                      call.padded_queries,
              item.parts, call.padded_queries, call.padded_queries, true, shares, merged);
    __syncthreads();
    merge_slice(call, item, group, rank, shares, merged,
                reinterpret_cast<float4*>(shared + memory.vectors), cluster, coefficients);
  }
  cluster.sync();
  // Numbers of values, kNumbers at a time for a warp, of all queries of their head, four at a time.
  for (int i = (rank * (kThreads / 32) + (static_cast<int>(threadIdx.x) >> 5)) * kNumbers;
       i < heads * call.value_dim; i += kSlices * (kThreads / 32) * kNumbers) {
    for (int first = 0; first < repeats; first += kQueriesAtOnce) {
      make_values(call, item, group, i, first, coded, row_shares, row_merged, merged, coefficients,
                  index);
    }
  }
  cluster.sync();  // nobody leaves while others write to its memory
}

}  // namespace

cudaError_t launch_finish(const AttendCall& call, cudaStream_t stream) {
  int parts = 1, row_parts = 1;
  for (int i = 0; i < call.item_count; ++i) {
    parts = std::max(parts, call.items[i].parts);
    row_parts = std::max(row_parts, call.items[i].row_parts);
  }
  const int heads = call.groups > 0 ? call.group_heads : 1;
  const Memory memory(parts, row_parts, heads * (call.query_heads / call.kv_heads),
                      call.padded_queries, call.chunks * kChunkPlaces);
  if (memory.bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        finish_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, memory.bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(kSlices, static_cast<unsigned>(call.groups > 0 ? call.groups : call.kv_heads),
           static_cast<unsigned>(call.item_count));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<std::size_t>(memory.bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kSlices;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, finish_kernel, call, memory);
}

}  // namespace kvspan::cuda
