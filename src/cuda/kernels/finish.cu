// SPDX-License-Identifier: Apache-2.0
// A cluster of kSlices blocks works for one item and one group of heads: each block merges the parts of
// its share of the components, hands them to the others, and makes its share of the values from all
// of them. Merging follows the log-sum-exp of the parts; empty parts count nothing.
#include "cuda/kernels/finish.h"

#include <cooperative_groups.h>

#include "cuda/kernels/attend_bands.cuh"
#include "cuda/kernels/rows.cuh"

namespace kvspan::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kSlices = 8, kThreads = 256;
constexpr int kRowQueriesAtOnce = 4;

struct Memory {
  int shares, states, coefficients, vectors, bytes;
  __host__ __device__ Memory(int parts, int padded, int places) {
    shares = 0;
    states = shares + parts * padded * 4;
    coefficients = (states + padded * 8 + 15) / 16 * 16;
    vectors = coefficients + padded * places * 4;
    bytes = vectors + kThreads * 16;
  }
};

// What each part counts for each query, and their maximum and sum.
__device__ void share_out(const float2* states, int parts, int padded, float* shares,
                          float2* merged) {
  const int lane = threadIdx.x & 31;
  for (int query = threadIdx.x >> 5; query < padded; query += kThreads / 32) {
    float most = kNothing, sum = 0.0f;
    for (int p = lane; p < parts; p += 32) most = fmaxf(most, states[p * padded + query].x);
    for (int o = 16; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    for (int p = lane; p < parts; p += 32) {
      const float2 state = states[p * padded + query];
      const float share = exp2_approx(state.x - most);
      shares[p * padded + query] = share;
      sum += share * state.y;
    }
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
    if (lane == 0) merged[query] = make_float2(most, sum);
  }
}

// This block's share of the components, merged and divided by the sum of weights, times steps.
__device__ void merge_slice(const AttendCall& call, const AttendItem& item, int group, int rank,
                            const float* shares, const float2* merged, float4* vectors,
                            const cg::cluster_group& cluster, float* coefficients) {
  const int padded = call.padded_queries, places = call.chunks * kChunkPlaces;
  const int slice = places / kSlices, count = padded * slice / 4;  // vectors of four
  const float* const sums =
      call.part_sums + (static_cast<std::int64_t>(group) * call.total_parts + item.parts_before) *
                           padded * places;
  const float* const steps = call.group_table[group].steps;
  for (int base = 0; base < count; base += kThreads) {
    const int here = min(kThreads, count - base), helpers = kThreads / here;
    const int v = base + threadIdx.x % here, helper = threadIdx.x / here;
    const int query = v / (slice / 4), place = rank * slice + v % (slice / 4) * 4;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (helper < helpers) {
      const float* from = sums + static_cast<std::int64_t>(query) * places + place;
#pragma unroll 4
      for (int p = helper; p < item.parts; p += helpers) {
        const float share = shares[p * padded + query];
        const float4 x = __ldcg(reinterpret_cast<const float4*>(
            from + static_cast<std::int64_t>(p) * padded * places));
        sum.x = fmaf(share, x.x, sum.x), sum.y = fmaf(share, x.y, sum.y);
        sum.z = fmaf(share, x.z, sum.z), sum.w = fmaf(share, x.w, sum.w);
      }
    }
    vectors[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < static_cast<unsigned>(here)) {
      for (int h = 1; h < helpers; ++h) {
        const float4 x = vectors[h * here + threadIdx.x];
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
      }
      const float inverse = merged[query].y > 0.0f ? 1.0f / merged[query].y : 0.0f;
      const float4 step = *reinterpret_cast<const float4*>(steps + place);
      sum.x *= inverse * step.x, sum.y *= inverse * step.y;
      sum.z *= inverse * step.z, sum.w *= inverse * step.w;
      for (int to = 0; to < kSlices; ++to) {
        float* const there = cluster.map_shared_rank(coefficients, to);
        *reinterpret_cast<float4*>(there + query * places + place) = sum;
      }
    }
    __syncthreads();
  }
}

// Of all parts of a query's rows: maximum and sum.
__device__ float2 merge_row_states(const AttendCall& call, const AttendItem& item, int query_head) {
  float most = kNothing, sum = 0.0f;
  for (int p = 0; p < item.row_parts; ++p) {
    most = fmaxf(most, call.row_states[static_cast<std::int64_t>(item.row_parts_before + p) *
                                           call.query_heads + query_head].x);
  }
  for (int p = 0; p < item.row_parts; ++p) {
    const float2 state = call.row_states[static_cast<std::int64_t>(item.row_parts_before + p) *
                                             call.query_heads + query_head];
    sum += exp2_approx(state.x - most) * state.y;
  }
  return make_float2(most, sum);
}

// Number `k` of the weighted sum of rows, times 2^-most.
__device__ float row_number(const AttendCall& call, const AttendItem& item, int query_head, int k,
                            float most) {
  float x = 0.0f;
  for (int p = 0; p < item.row_parts; ++p) {
    const std::int64_t at = static_cast<std::int64_t>(item.row_parts_before + p) * call.query_heads +
                            query_head;
    x += exp2_approx(call.row_states[at].x - most) * call.row_sums[at * call.value_dim + k];
  }
  return x;
}

__global__ void __launch_bounds__(kThreads)
    finish_kernel(const __grid_constant__ AttendCall call, const Memory memory) {
  extern __shared__ __align__(16) char shared[];
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int group = blockIdx.y, index = blockIdx.z;
  const AttendItem& item = call.items[index];
  const bool coded = call.groups > 0 && item.parts > 0;
  const int heads = call.groups > 0 ? call.group_heads : 1;
  const int repeats = call.query_heads / call.kv_heads, places = call.chunks * kChunkPlaces;
  float* const coefficients = reinterpret_cast<float*>(shared + memory.coefficients);
  float2* const merged = reinterpret_cast<float2*>(shared + memory.states);
  cluster.sync();  // all are there to be written to
  if (coded) {
    float* const shares = reinterpret_cast<float*>(shared + memory.shares);
    share_out(call.part_states + (static_cast<std::int64_t>(group) * call.total_parts +
                                  item.parts_before) * call.padded_queries,
              item.parts, call.padded_queries, shares, merged);
    __syncthreads();
    merge_slice(call, item, group, rank, shares, merged,
                reinterpret_cast<float4*>(shared + memory.vectors), cluster, coefficients);
  }
  cluster.sync();
  // A warp for each number of a value, of all queries of its head.
  const int lane = threadIdx.x & 31;
  for (int i = rank + kSlices * (static_cast<int>(threadIdx.x) >> 5); i < heads * call.value_dim;
       i += kSlices * kThreads / 32) {
    const int within = i / call.value_dim, k = i % call.value_dim;
    for (int first = 0; first < repeats; first += kRowQueriesAtOnce) {
      float dot[kRowQueriesAtOnce] = {};
      const int queries = min(kRowQueriesAtOnce, repeats - first);
      if (coded) {
        const __half* const row =
            call.group_table[group].value_basis + static_cast<std::int64_t>(i) * places;
        for (int p = 4 * lane; p < places; p += 128) {
          const uint2 raw = __ldg(reinterpret_cast<const uint2*>(row + p));
          const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&raw.x));
          const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&raw.y));
#pragma unroll
          for (int n = 0; n < kRowQueriesAtOnce; ++n) {
            if (n >= queries) break;
            const float4 x = *reinterpret_cast<const float4*>(
                coefficients + (within * repeats + first + n) * places + p);
            dot[n] += a.x * x.x + a.y * x.y + b.x * x.z + b.y * x.w;
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kRowQueriesAtOnce; ++n) {
        for (int o = 16; o > 0; o /= 2) dot[n] += __shfl_xor_sync(~0u, dot[n], o);
      }
      if (lane >= queries) continue;
      const int query = within * repeats + first + lane;
      const int query_head = (group * heads + within) * repeats + first + lane;
      float value = 0.0f;
#pragma unroll
      for (int n = 0; n < kRowQueriesAtOnce; ++n) value = n == lane ? dot[n] : value;
      float2 of_codes = make_float2(kNothing, 0.0f);
      if (coded) {
        const AttendCall::Group& code = call.group_table[group];
        value = value * code.value_scales[i] + code.value_means[i];
        of_codes = merged[query];
      }
      const float2 of_rows = merge_row_states(call, item, query_head);
      const float most = fmaxf(of_codes.x, of_rows.x);
      const float codes = exp2_approx(of_codes.x - most) * of_codes.y;
      const float total = codes + exp2_approx(of_rows.x - most) * of_rows.y;
      const float sum = codes * value + row_number(call, item, query_head, k, most);
      write_number(call.out, index * call.out_token_stride + query_head * call.out_head_stride + k,
                   call.out_type, total > 0.0f ? sum / total : 0.0f);
    }
  }
  cluster.sync();  // nobody leaves while others write to its memory
}

}  // namespace

cudaError_t launch_finish(const AttendCall& call, cudaStream_t stream) {
  int parts = 1;
  for (int i = 0; i < call.item_count; ++i) {
    parts = call.items[i].parts > parts ? call.items[i].parts : parts;
  }
  const Memory memory(parts, call.padded_queries > 0 ? call.padded_queries : 8,
                      call.chunks * kChunkPlaces);
  if (memory.bytes > 48 * 1024) {
    const cudaError_t error = cudaFuncSetAttribute(
        finish_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, memory.bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kSlices, static_cast<unsigned>(call.groups > 0 ? call.groups : call.kv_heads),
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
