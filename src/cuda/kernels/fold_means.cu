// SPDX-License-Identifier: Apache-2.0
// What queries make of the mean of keys: for each block of kMeanBlock positions the sums of
// cache/anchored_means.h, in f16 and in the order of a matrix operand; what is equal for all
// positions of a block stays in f32. A warp takes up to two query heads of one KV head, which share
// all turns, and 32 blocks, one for each thread.
#include <cuda_fp16.h>

#include "cuda/kernels/mma.cuh"
#include "cuda/kernels/prepare.h"
#include "cuda/kernels/rows.cuh"

namespace kvspan::cuda {
namespace {

constexpr int kOrders = 4;  // of either parity, for slow pairs
constexpr int kWarps = 4, kQueries = 2;
constexpr int kMaxPairs = 128;

// Words of a warp: products [pairs][2 queries][2], then rows of 32 threads, an odd number of words
// each so that threads do not meet in a bank.
struct Memory {
  int rows, stride, words;
  __host__ __device__ Memory(int pairs, int terms) {
    rows = pairs * kQueries * 2;
    stride = terms / 2 + 1 - terms / 2 % 2;
    words = (rows + 32 * stride + 3) / 4 * 4;
  }
};

// Word of the pair of numbers k, k + 1 (k even) as an operand of steps of 16 has them:
// [step][4 threads][2].
__device__ __forceinline__ int folded_word(int k) {
  return k / 16 * 8 + k % 8 / 2 * 2 + k % 16 / 8;
}

__device__ __forceinline__ std::uint32_t halves(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&both);
}

struct Turned {
  float a, b;  // factors of cosines and of sines
};
__device__ __forceinline__ Turned turned(const float2& w, const float2& t) {
  return {w.x * t.x + w.y * t.y, w.y * t.x - w.x * t.y};
}

// Query heads first .. first + count - 1 of the KV head, blocks first_block .. + 31 of the item.
__device__ void fold(const AttendCall& call, int index, int head, int first, int count,
                     int first_block, const Memory& memory, float* shared) {
  const int lane = threadIdx.x & 31;
  const AttendItem& item = call.items[index];
  const int repeats = call.query_heads / call.kv_heads;
  const int group = head / call.group_heads, within = head % call.group_heads;
  const float* const mean = call.key_means + head * call.key_dim;
  const int pairs = call.rope_pairs;
  const float scale = call.logit_scale * 1.44269504f;
  float constants[kQueries];
  // u . Rot mu = Re(conj(mu) u) cos + Im(conj(mu) u) sin, and u turns by one product.
#pragma unroll
  for (int n = 0; n < kQueries; ++n) {
    const std::int64_t from =
        index * call.queries.token_stride +
        (head * repeats + first + min(n, count - 1)) * call.queries.head_stride;
    const auto number = [&](int i) {
      return read_number(call.queries.data, from + i, call.queries.type);
    };
#pragma unroll
    for (int i = 0; i < kMaxPairs / 32; ++i) {
      const int j = 32 * i + lane;
      if (j >= pairs) break;
      const PairPlace at = pair_place(j, pairs, call.neighbours);
      const float x = number(at.first), y = number(at.second), p = __ldg(mean + at.first),
                  q = __ldg(mean + at.second);
      const float by = scale * call.rope_magnitude;
      *reinterpret_cast<float2*>(shared + (j * kQueries + n) * 2) =
          make_float2(by * (x * p + y * q), by * (y * p - x * q));
    }
    constants[n] = 0.0f;
    for (int i = 2 * pairs + lane; i < call.key_dim; i += 32) {
      constants[n] += scale * number(i) * mean[i];
    }
    if (2 * pairs < call.key_dim) {
#pragma unroll
      for (int o = 16; o > 0; o /= 2) constants[n] += __shfl_xor_sync(~0u, constants[n], o);
    }
  }
  __syncwarp();
  const int block = first_block + lane;
  if (block >= item.means) return;
  const int turn = ((item.first_mean + block) * kMeanBlock + kMeanBlock / 2) / kTurnStep;
  const float2* const turns = call.turns_by_pair + turn;
  const std::int64_t stride = call.turn_count;
  const auto products = [&](int j, float2(&w)[kQueries]) {
    const float4 both = *reinterpret_cast<const float4*>(shared + j * kQueries * 2);
    w[0] = make_float2(both.x, both.y), w[1] = make_float2(both.z, both.w);
  };
  const int alone = call.mean_alone, sines = alone + alone % 2, evens = 2 * sines;

  float even[kQueries][kOrders] = {}, odd[kQueries][kOrders] = {};
  const float4* by = reinterpret_cast<const float4*>(call.mean_slow_table);
#pragma unroll 12
  for (int j = alone; j < pairs; ++j, by += 2) {
    const float2 t = __ldg(turns + j * stride);
    const float4 e = __ldg(by), d = __ldg(by + 1);
    float2 w[kQueries];
    products(j, w);
#pragma unroll
    for (int n = 0; n < kQueries; ++n) {
      const Turned u = turned(w[n], t);
      even[n][0] += u.a * e.x, even[n][1] += u.a * e.y;
      even[n][2] += u.a * e.z, even[n][3] += u.a * e.w;
      odd[n][0] += u.b * d.x, odd[n][1] += u.b * d.y;
      odd[n][2] += u.b * d.z, odd[n][3] += u.b * d.w;
    }
  }
  auto* const row = reinterpret_cast<std::uint32_t*>(shared + memory.rows) + lane * memory.stride;
  const std::int64_t at =
      static_cast<std::int64_t>(group) * call.total_means + item.means_before + block;
  const int steps = call.mean_terms / 16;
#pragma unroll
  for (int n = 0; n < kQueries; ++n) {
    if (n >= count) break;
#pragma unroll 6
    for (int j = 0; j < alone; j += 2) {
      Turned u[2] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (j + i >= alone) break;
        u[i] = turned(*reinterpret_cast<const float2*>(shared + ((j + i) * kQueries + n) * 2),
                      __ldg(turns + (j + i) * stride));
      }
      row[folded_word(j)] = halves(u[0].a, u[1].a);
      row[folded_word(sines + j)] = halves(u[0].b, u[1].b);
    }
    int used = evens;
    if (call.mean_slow > 0) {
      constants[n] += even[n][0];
      row[folded_word(evens)] = halves(even[n][1], even[n][2]);
      row[folded_word(evens + 2)] = halves(even[n][3], odd[n][0]);
      row[folded_word(evens + 4)] = halves(odd[n][1], odd[n][2]);
      row[folded_word(evens + 6)] = halves(odd[n][3], 0.0f);
      used += 8;
    }
    for (int k = used; k < call.mean_terms; k += 2) row[folded_word(k)] = 0;
    const int query = within * repeats + first + n;
    uint4* const to = reinterpret_cast<uint4*>(
        call.folded + (at * (call.padded_queries / 8) + query / 8) * steps * 32 + query % 8 * 4);
    for (int s = 0; s < steps; ++s) {
      const std::uint32_t* const from = row + 8 * s;
      to[s * 16] = make_uint4(from[0], from[1], from[2], from[3]);
      to[s * 16 + 1] = make_uint4(from[4], from[5], from[6], from[7]);
    }
    call.folded_constants[at * call.padded_queries + query] = constants[n];
  }
}

__global__ void __launch_bounds__(32 * kWarps)
    fold_means_kernel(const __grid_constant__ AttendCall call) {
  cudaTriggerProgrammaticLaunchCompletion();
  ask_for_parameters(call);
  extern __shared__ __align__(16) float shared[];
  const int warp = threadIdx.x >> 5;
  const Memory memory(call.rope_pairs, call.mean_terms);
  const int repeats = call.query_heads / call.kv_heads;
  const int tiles = (repeats + kQueries - 1) / kQueries;
  int unit = blockIdx.x * kWarps + warp;
  const int head_tile = unit % (call.kv_heads * tiles);
  unit /= call.kv_heads * tiles;
  const int first = head_tile % tiles * kQueries;
  for (int i = 0; i < call.item_count; ++i) {
    const int units = (call.items[i].means + 31) / 32;
    if (unit < units) {
      return fold(call, i, head_tile / tiles, first, min(kQueries, repeats - first), 32 * unit,
                  memory, shared + warp * memory.words);
    }
    unit -= units;
  }
}

}  // namespace

cudaError_t launch_fold_means(const AttendCall& call, cudaStream_t stream) {
  if (call.groups == 0 || call.mean_terms == 0) return cudaSuccess;
  if (call.rope_pairs > kMaxPairs) return cudaErrorInvalidValue;
  int units = 0;
  for (int i = 0; i < call.item_count; ++i) units += (call.items[i].means + 31) / 32;
  const int repeats = call.query_heads / call.kv_heads;
  const int tiles = (repeats + kQueries - 1) / kQueries;
  const int blocks = (units * call.kv_heads * tiles + kWarps - 1) / kWarps;
  if (blocks == 0) return cudaSuccess;
  const int bytes = kWarps * Memory(call.rope_pairs, call.mean_terms).words * 4;
  if (bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(fold_means_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
  }
  fold_means_kernel<<<static_cast<unsigned>(blocks), 32 * kWarps, static_cast<std::size_t>(bytes),
                      stream>>>(call);
  return cudaGetLastError();
}

}  // namespace kvspan::cuda
