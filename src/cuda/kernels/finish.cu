// SPDX-License-Identifier: Apache-2.0
// A cluster of blocks works for one item and one group of heads: each block merges the
// parts of its share of the components, hands them to the others, and makes its share of the values
// from all of them. Merging follows the log-sum-exp of the parts; empty parts count nothing.
#include "cuda/kernels/finish.h"

#include <cooperative_groups.h>

#include <algorithm>

#include "cuda/kernels/overlapping_launch.h"
#include "cuda/kernels/rows.cuh"
#include "cuda/kernels/softmax.cuh"

namespace kvspan::cuda {
namespace {

namespace cg = cooperative_groups;

// Blocks of a cluster and threads of a block: many where there are few items, few where there are many.
constexpr int kManySlices = 8, kFewSlices = 4, kManyThreads = 512, kFewThreads = 256;
constexpr int kClustersOfManyThreads = 8, kClustersOfManySlices = 32;  // at most
constexpr int kMostSplits = 4;

// What a block's share of the values is, and where things lie in shared memory.
struct Finish {
  int slices, threads, warps;   // blocks of a cluster; of a block
  int heads, repeats, queries;  // of a group
  int dims, tiles;              // values of a block, and tiles of 16 of them
  int splits;                   // of the places, so that all warps work
  int coefficient_stride;       // halves
  int shares, row_shares, states, row_states, coefficients, vectors, sums, steps, bytes;
  __host__ __device__ Finish(const AttendCall& call, int parts, int row_parts, int of_cluster, int of_block)
      : slices(of_cluster), threads(of_block), warps(of_block / 32) {
    heads = call.groups > 0 ? call.group_heads : 1;
    repeats = call.query_heads / call.kv_heads;
    queries = heads * repeats;
    dims = (heads * call.value_dim / slices + 15) / 16 * 16;
    tiles = dims / 16;
    splits = tiles >= warps ? 1 : warps / tiles < kMostSplits ? warps / tiles : kMostSplits;
    coefficient_stride = call.chunks * kChunkPlaces + 8;
    shares = 0;
    row_shares = shares + parts * call.padded_queries * 4;
    states = (row_shares + row_parts * queries * 4 + 7) / 8 * 8;
    row_states = states + call.padded_queries * 8;
    coefficients = (row_states + queries * 8 + 15) / 16 * 16;
    vectors = coefficients + call.padded_queries * coefficient_stride * 2;
    sums = vectors + threads * 32;
    steps = sums + splits * dims * call.padded_queries * 4;  // of the block's share of the places
    bytes = steps + call.chunks * kChunkPlaces / slices * 4;
  }
};

// States of a query that a lane asks for early: of parts lane, lane + 32, .., or nothing.
constexpr int kEarlyStates = 4;
struct EarlyStates {
  float2 state[kEarlyStates];
  __device__ __forceinline__ EarlyStates(const float2* states, int parts, int stride, int query) {
#pragma unroll
    for (int i = 0; i < kEarlyStates; ++i) {
      const int p = static_cast<int>(threadIdx.x & 31) + 32 * i;
      state[i] = p < parts ? __ldcg(states + p * stride + query) : make_float2(kNothing, 0.0f);
    }
  }
};

// That a block of the cluster is there to be written to, and waiting for all of them to be: in two halves, since
// it takes a while.
__device__ __forceinline__ void announce_block() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_blocks() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// What each part counts for a query, and their maximum and sum, by a warp. States of a part lie
// `stride` apart. of_means: parts hold means, not sums.
__device__ __forceinline__ void share_out(const float2* states, const EarlyStates& early, int parts,
                                          int stride, int query, int queries, bool of_means,
                                          float* shares, float2* merged) {
  const int lane = threadIdx.x & 31;
  float most = fmaxf(fmaxf(early.state[0].x, early.state[1].x), fmaxf(early.state[2].x, early.state[3].x));
  float sum = 0.0f;
#pragma unroll 1
  for (int p = lane + 32 * kEarlyStates; p < parts; p += 32) {
    most = fmaxf(most, __ldcg(states + p * stride + query).x);
  }
  for (int o = 16; o > 0; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
  const auto add = [&](int p, const float2& state) {
    const float share = exp2_approx(state.x - most) * (of_means ? state.y : 1.0f);
    shares[p * queries + query] = share;
    sum += of_means ? share : share * state.y;
  };
#pragma unroll
  for (int i = 0; i < kEarlyStates; ++i) {
    if (lane + 32 * i < parts) add(lane + 32 * i, early.state[i]);
  }
#pragma unroll 1
  for (int p = lane + 32 * kEarlyStates; p < parts; p += 32) add(p, __ldcg(states + p * stride + query));
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0u, sum, o);
  if (lane == 0) merged[query] = make_float2(most, sum);
}

// Which vectors of 8 numbers of the parts' means a thread adds up: `here` at a time, each by
// `helpers` threads, that of every helpers-th part.
struct MergeLane {
  int here, helpers, helper, query, place;
  __device__ __forceinline__ MergeLane(int threads, int base, int count, int slice, int rank) {
    here = min(threads, count - base);
    helpers = threads / here;
    helper = static_cast<int>(threadIdx.x) / here;
    const int v = base + static_cast<int>(threadIdx.x) % here;
    query = v / (slice / 8);
    place = rank * slice + v % (slice / 8) * 8;
  }
};

// The first parts of a thread's sum, asked for before anything else is known: kEarly of them, more
// where few blocks run at a time.
template <int kEarly>
struct EarlyParts {
  uint4 raw[kEarly];
  __device__ __forceinline__ EarlyParts(const __half* means, int parts, std::int64_t part_stride,
                                        const MergeLane& lane, std::int64_t at) {
#pragma unroll
    for (int i = 0; i < kEarly; ++i) {
      const int p = lane.helper + i * lane.helpers;
      const bool there = lane.helper < lane.helpers && p < parts;
      raw[i] = there ? __ldcg(reinterpret_cast<const uint4*>(means + p * part_stride + at))
                     : make_uint4(0, 0, 0, 0);
    }
  }
};

__device__ __forceinline__ void add_part(const uint4& raw, float share, float (&sum)[8]) {
  const __half2* const x = reinterpret_cast<const __half2*>(&raw);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 f = __half22float2(x[i]);
    sum[2 * i] = fmaf(share, f.x, sum[2 * i]);
    sum[2 * i + 1] = fmaf(share, f.y, sum[2 * i + 1]);
  }
}

// This block's share of the components, merged and divided by the sum of weights, times steps, to
// all blocks of the cluster. vectors: of 8 numbers; [threads][2]. shares_known is called once,
// before the first share is read.
template <int kEarly, class SharesKnown>
__device__ __forceinline__ void merge_slice(const AttendCall& call, const Finish& finish, int index,
                                            int group, int rank, const float* shares,
                                            const float2* merged, const float* steps, float4* vectors,
                                            const cg::cluster_group& cluster, __half* coefficients,
                                            const SharesKnown& shares_known) {
  const int padded = call.padded_queries, places = call.chunks * kChunkPlaces;
  const int parts = call.plan().items[index].parts;
  const int slice = places / finish.slices, count = finish.queries * slice / 8;
  const std::int64_t part_stride = static_cast<std::int64_t>(padded) * places;
  const __half* const means =
      call.part_means + (static_cast<std::int64_t>(group) * call.plan().total_parts +
                         call.plan().parts_before[index]) *
                            part_stride;
#pragma unroll 1
  for (int base = 0; base < count; base += finish.threads) {
    const MergeLane lane(finish.threads, base, count, slice, rank);
    const int here = lane.here, helpers = lane.helpers;
    const std::int64_t at = static_cast<std::int64_t>(lane.query) * places + lane.place;
    const EarlyParts<kEarly> early(means, parts, part_stride, lane, at);
    if (base == 0) shares_known();
    float sum[8] = {};
#pragma unroll
    for (int i = 0; i < kEarly; ++i) {
      const int p = lane.helper + i * helpers;
      if (p < parts) add_part(early.raw[i], shares[p * padded + lane.query], sum);
    }
    if (lane.helper < helpers) {
#pragma unroll 8
      for (int p = lane.helper + kEarly * helpers; p < parts; p += helpers) {
        add_part(__ldcg(reinterpret_cast<const uint4*>(means + p * part_stride + at)),
                 shares[p * padded + lane.query], sum);
      }
    }
    vectors[2 * threadIdx.x] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    vectors[2 * threadIdx.x + 1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
    __syncthreads();
    // Half a vector by each thread, to all blocks.
#pragma unroll 1
    for (int half = threadIdx.x; half < 2 * here; half += finish.threads) {
      const int of = base + half / 2, its_query = of / (slice / 8);
      const int its_place = rank * slice + of % (slice / 8) * 8 + half % 2 * 4;
      float4 x = vectors[half];
#pragma unroll 1
      for (int h = 1; h < helpers; ++h) {
        const float4 y = vectors[2 * h * here + half];
        x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
      }
      const float inverse = merged[its_query].y > 0.0f ? 1.0f / merged[its_query].y : 0.0f;
      const float4 step = *reinterpret_cast<const float4*>(steps + its_place - rank * slice);
      const __half2 both[2] = {__floats2half2_rn(x.x * inverse * step.x, x.y * inverse * step.y),
                               __floats2half2_rn(x.z * inverse * step.z, x.w * inverse * step.w)};
#pragma unroll 4
      for (int to = 0; to < finish.slices; ++to) {
        *reinterpret_cast<uint2*>(cluster.map_shared_rank(coefficients, to) +
                                  its_query * finish.coefficient_stride + its_place) =
            *reinterpret_cast<const uint2*>(both);
      }
    }
    __syncthreads();
  }
}

// The first segments of 32 places of a warp's first tile of values, for eight rows and the next.
constexpr int kEarlySegments = 3;
struct EarlyBasis {
  uint4 low[kEarlySegments], high[kEarlySegments];
};

// Values of codes before scale and mean, [split][queries][dims] in `sums`: rows of 16 values by
// eights of queries, the places of a split by each warp. Called first without coefficients, to ask
// for the basis.
template <bool kAsk>
__device__ __forceinline__ void multiply_values(const AttendCall& call, const Finish& finish,
                                                int group, int rank, const __half* coefficients,
                                                EarlyBasis& early, float* sums) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
  const int places = call.chunks * kChunkPlaces, all = finish.heads * call.value_dim;
  const int split = warp * finish.splits / finish.warps, segments = places / 32;
  const int begin = segments * split / finish.splits, end = segments * (split + 1) / finish.splits;
  const int warps = finish.warps / finish.splits;  // of a split
#pragma unroll 1
  for (int tile = warp % warps; tile < finish.tiles; tile += warps) {
    const int first = rank * finish.dims + 16 * tile;
    if (first >= all) break;
    // Rows beyond the last repeat it; nobody reads them.
    const auto row = [&](int i) {
      return call.value_basis +
             (static_cast<std::int64_t>(group) * all + min(first + i, all - 1)) * places + 8 * c;
    };
    const __half *const low = row(g), *const high = row(g + 8);
    const auto part = [&](const __half* from, int s) {
      return __ldg(reinterpret_cast<const uint4*>(from + 32 * s));
    };
    if constexpr (kAsk) {
#pragma unroll
      for (int i = 0; i < kEarlySegments; ++i) {
        const int s = min(begin + i, segments - 1);
        early.low[i] = part(low, s), early.high[i] = part(high, s);
      }
      return;
    }
    const bool first_tile = tile == warp % warps;
    const int last_head = min(first + 15, all - 1) / call.value_dim;
    const int last = ((last_head + 1) * finish.repeats - 1) / 8;
#pragma unroll 1
    for (int n = first / call.value_dim * finish.repeats / 8; n <= last; ++n) {
      const __half* const query = coefficients + (8 * n + g) * finish.coefficient_stride + 8 * c;
      float d[4] = {};
      const auto multiply = [&](const uint4& a, const uint4& b, int s) {
        const uint4 x = *reinterpret_cast<const uint4*>(query + 32 * s);
        mma_f16(d, make_uint4(a.x, b.x, a.y, b.y), make_uint2(x.x, x.y));
        mma_f16(d, make_uint4(a.z, b.z, a.w, b.w), make_uint2(x.z, x.w));
      };
      int s = begin;
      if (first_tile) {
#pragma unroll
        for (int i = 0; i < kEarlySegments; ++i) {
          if (begin + i < end) multiply(early.low[i], early.high[i], begin + i);
        }
        s = min(begin + kEarlySegments, end);
      }
#pragma unroll 3
      for (; s < end; ++s) multiply(part(low, s), part(high, s), s);
      float* const to = sums + (split * call.padded_queries + 8 * n + 2 * c) * finish.dims +
                        16 * tile + g;
      to[0] = d[0], to[8] = d[2];
      to[finish.dims] = d[1], to[finish.dims + 8] = d[3];
    }
  }
}

// Sums of rows by helpers, a thread for each value of each query of its head.
struct RowLane {
  int outputs, here, helpers, helper, dim, query;
  __device__ __forceinline__ RowLane(const AttendCall& call, const Finish& finish, int rank, int base) {
    const int first = rank * finish.dims;
    const int dims = max(0, min(finish.dims, finish.heads * call.value_dim - first));
    outputs = dims * finish.repeats;
    here = min(finish.threads, outputs - base);
    if (here <= 0) {
      helpers = helper = dim = query = 0;
      return;
    }
    helpers = finish.threads / here;
    helper = static_cast<int>(threadIdx.x) / here;
    const int output = base + static_cast<int>(threadIdx.x) % here;
    dim = first + output % dims;
    query = dim / call.value_dim * finish.repeats + output / dims;
  }
};

// The first parts of such a sum, asked for before their shares are known.
constexpr int kEarlyRows = 5;
struct EarlyRows {
  const float* from;
  std::int64_t stride;
  float sum[kEarlyRows];
  __device__ __forceinline__ EarlyRows(const AttendCall& call, const Finish& finish, int index,
                                       int group, const RowLane& lane)
      : from(call.row_sums +
             (static_cast<std::int64_t>(call.plan().row_parts_before[index]) * call.query_heads +
              group * finish.queries + lane.query) *
                 call.value_dim +
             lane.dim % call.value_dim),
        stride(static_cast<std::int64_t>(call.query_heads) * call.value_dim) {
#pragma unroll
    for (int i = 0; i < kEarlyRows; ++i) {
      const int p = lane.helper + i * lane.helpers;
      const bool there = lane.helper < lane.helpers && p < call.plan().items[index].row_parts;
      sum[i] = there ? __ldcg(from + p * stride) : 0.0f;
    }
  }
};

__device__ __forceinline__ float add_rows(const EarlyRows& early, const Finish& finish, const RowLane& lane,
                                          int parts, const float* row_shares) {
  float rows = 0.0f;
  if (lane.helper >= lane.helpers) return rows;
#pragma unroll
  for (int i = 0; i < kEarlyRows; ++i) {
    const int p = lane.helper + i * lane.helpers;
    if (p < parts) rows = fmaf(row_shares[p * finish.queries + lane.query], early.sum[i], rows);
  }
#pragma unroll 4
  for (int p = lane.helper + kEarlyRows * lane.helpers; p < parts; p += lane.helpers) {
    rows = fmaf(row_shares[p * finish.queries + lane.query], __ldcg(early.from + p * early.stride), rows);
  }
  return rows;
}

template <int kThreads, int kEarly, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    finish_kernel(const __grid_constant__ AttendCall call, const Finish finish) {
  extern __shared__ __align__(16) char shared[];
  ask_for_parameters(call);
  const cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  const int group = blockIdx.y, index = blockIdx.z;
  const AttendItem& item = call.plan().items[index];
  const bool coded = call.groups > 0 && item.parts > 0;
  auto* const coefficients = reinterpret_cast<__half*>(shared + finish.coefficients);
  float2* const merged = reinterpret_cast<float2*>(shared + finish.states);
  float2* const row_merged = reinterpret_cast<float2*>(shared + finish.row_states);
  float* const row_shares = reinterpret_cast<float*>(shared + finish.row_shares);
  float* const vectors = reinterpret_cast<float*>(shared + finish.vectors);
  float* const sums = reinterpret_cast<float*>(shared + finish.sums);
  cudaTriggerProgrammaticLaunchCompletion();  // what comes next waits itself
  float* const steps = reinterpret_cast<float*>(shared + finish.steps);
  EarlyBasis basis;
  const RowLane row_lane(call, finish, rank, 0);
  float2 scale = make_float2(0.0f, 0.0f);
  if (coded) {
    multiply_values<true>(call, finish, group, rank, nullptr, basis, nullptr);
    const int places = call.chunks * kChunkPlaces, slice = places / finish.slices;
#pragma unroll 1
    for (int i = threadIdx.x; i < slice; i += kThreads) {
      steps[i] = __ldg(call.steps + group * places + rank * slice + i);
    }
    if (row_lane.here > 0) {
      scale = __ldg(call.value_scales + group * finish.heads * call.value_dim + row_lane.dim);
    }
  }
  const int warp = static_cast<int>(threadIdx.x) >> 5, padded = call.padded_queries;
  const float2* const row_states =
      call.row_states +
      static_cast<std::int64_t>(call.plan().row_parts_before[index]) * call.query_heads +
      group * finish.queries;
  const std::int64_t first_part =
      static_cast<std::int64_t>(group) * call.plan().total_parts + call.plan().parts_before[index];
  const float2* const states = call.part_states + first_part * padded;
  // Where they lie is looked up before they are written.
  prefetch(row_states);
  prefetch(call.row_sums);
  if (coded) {
    prefetch(states);
    prefetch(call.part_means + first_part * padded * call.chunks * kChunkPlaces);
  }
  announce_block();
  cudaGridDependencySynchronize();  // what parts have written is there
  // All of the first query's states, and the first rows, are asked for together. Rows are the other half of
  // the warps' first.
  constexpr int kWarps = kThreads / 32;
  const int row_query = (warp + kWarps / 2) % kWarps;
  const EarlyStates early_rows(row_states, row_query < finish.queries ? item.row_parts : 0, call.query_heads,
                               row_query);
  const EarlyRows first_rows(call, finish, index, group, row_lane);
  const auto share_rows = [&] {
#pragma unroll 1
    for (int query = row_query; query < finish.queries; query += kWarps) {
      const EarlyStates early = query == row_query ? early_rows
                                              : EarlyStates(row_states, item.row_parts, call.query_heads, query);
      share_out(row_states, early, item.row_parts, call.query_heads, query, finish.queries, false,
                row_shares, row_merged);
    }
  };
  if (coded) {
    float* const shares = reinterpret_cast<float*>(shared + finish.shares);
    merge_slice<kEarly>(call, finish, index, group, rank, shares, merged, steps,
                        reinterpret_cast<float4*>(vectors), cluster, coefficients, [&] {
#pragma unroll 1
                          for (int query = warp; query < finish.queries; query += kWarps) {
                            share_out(states, EarlyStates(states, item.parts, padded, query),
                                      item.parts, padded, query, padded, true, shares, merged);
                          }
                          share_rows();
                          __syncthreads();
                          wait_for_blocks();
                        });
  } else {
    share_rows();
    __syncthreads();
    wait_for_blocks();
  }
  float rows = add_rows(first_rows, finish, row_lane, item.row_parts, row_shares);
  cluster.sync();  // also: nobody writes to others any more
  if (coded) multiply_values<false>(call, finish, group, rank, coefficients, basis, sums);
  const int all = finish.heads * call.value_dim, outputs = row_lane.outputs;
#pragma unroll 1
  for (int base = 0; base < outputs; base += kThreads) {
    const RowLane lane(call, finish, rank, base);
    const int here = lane.here, helpers = lane.helpers, query = lane.query, k = lane.dim % call.value_dim;
    if (base > 0) {
      rows = add_rows(EarlyRows(call, finish, index, group, lane), finish, lane, item.row_parts, row_shares);
      if (coded) scale = __ldg(call.value_scales + group * all + lane.dim);
    }
    vectors[threadIdx.x] = rows;
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < here) {
#pragma unroll 1
      for (int h = 1; h < helpers; ++h) rows += vectors[h * here + threadIdx.x];
      float value = 0.0f;
      float2 of_codes = make_float2(kNothing, 0.0f);
      if (coded) {
#pragma unroll 1
        for (int s = 0; s < finish.splits; ++s) {
          value += sums[(s * call.padded_queries + query) * finish.dims + lane.dim - rank * finish.dims];
        }
        value = value * scale.x + scale.y;
        of_codes = merged[query];
      }
      const float2 of_rows = row_merged[query];
      const float most = fmaxf(of_codes.x, of_rows.x);
      const float codes = exp2_approx(of_codes.x - most) * of_codes.y;
      const float row_factor = exp2_approx(of_rows.x - most);
      const float total = codes + row_factor * of_rows.y;
      const float sum = codes * value + row_factor * rows;
      write_number(call.out,
                   index * call.out_token_stride +
                       (group * finish.queries + query) * call.out_head_stride + k,
                   call.out_type, total > 0.0f ? sum / total : 0.0f);
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch_finish(const AttendCall& call, const PlanCapacity& capacity, bool overlaps,
                          cudaStream_t stream) {
  const int groups = call.groups > 0 ? call.groups : call.kv_heads;
  const int clusters = groups * capacity.items;
  const int slices = clusters <= kClustersOfManySlices ? kManySlices : kFewSlices;
  const int threads = clusters <= kClustersOfManyThreads ? kManyThreads : kFewThreads;
  const Finish finish(call, capacity.item_parts, capacity.item_row_parts, slices, threads);
  const auto kernel = threads == kManyThreads ? finish_kernel<kManyThreads, 8, 1>
                      : slices == kManySlices ? finish_kernel<kFewThreads, 8, 2>
                                              : finish_kernel<kFewThreads, 2, 3>;
  const cudaError_t error = allow_shared_bytes(kernel, finish.bytes);
  if (error != cudaSuccess) return error;
  OverlappingLaunch launch(dim3(static_cast<unsigned>(slices), static_cast<unsigned>(groups),
                                static_cast<unsigned>(capacity.items)),
                           dim3(static_cast<unsigned>(finish.threads)), finish.bytes, stream,
                           overlaps);
  launch.set_cluster(static_cast<unsigned>(slices));
  return cudaLaunchKernelEx(launch.config(), kernel, call, finish);
}

}  // namespace kvspan::cuda
