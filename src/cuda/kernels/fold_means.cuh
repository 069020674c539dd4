// SPDX-License-Identifier: Apache-2.0
// What queries make of the mean of keys: for each block of kMeanBlock positions the sums of
// cache/anchored_means.h, in f16 and in the order of a matrix operand; what is equal for all positions
// of a block stays in f32. A warp takes one query and 32 blocks, one for each thread.
#pragma once

#include "cuda/attend_call.h"
#include "cuda/kernels/rows.cuh"

namespace kvspan::cuda {

inline constexpr int kMeanOrders = 4;

// Where number k of a row of folded queries lies: an operand of steps of 16, [32 threads][4 halves].
__device__ __forceinline__ int folded_place(int k, int query) {
  const int within = k % 16;
  return (k / 16 * 32 + query % 8 * 4 + within % 8 / 2) * 4 + within / 8 * 2 + within % 2;
}

// products: [rope_pairs], working memory of the warp.
__device__ inline void fold_means(const AttendCall& call, int query_head, int index, int first_block,
                                  float2* products) {
  const int lane = threadIdx.x & 31;
  const AttendItem& item = call.items[index];
  const int repeats = call.query_heads / call.kv_heads, head = query_head / repeats;
  const int group = head / call.group_heads, within = head % call.group_heads;
  const int query = within * repeats + query_head % repeats;
  const float* const mean = call.group_table[group].key_means + within * call.key_dim;
  const std::int64_t from =
      index * call.queries.token_stride + query_head * call.queries.head_stride;
  const auto number = [&](int i) { return read_number(call.queries.data, from + i, call.queries.type); };
  const int pairs = call.rope_pairs;
  const float scale = call.logit_scale * 1.44269504f;
  __syncwarp();
  // u . Rot mu = Re(conj(mu) u) cos + Im(conj(mu) u) sin, and u turns by one product.
  for (int j = lane; j < pairs; j += 32) {
    const PairPlace at = pair_place(j, pairs, call.neighbours);
    const float x = number(at.first), y = number(at.second), p = mean[at.first],
                q = mean[at.second];
    const float by = scale * call.rope_magnitude;
    products[j] = make_float2(by * (x * p + y * q), by * (y * p - x * q));
  }
  float constant = 0.0f;
  for (int i = 2 * pairs + lane; i < call.key_dim; i += 32) constant += scale * number(i) * mean[i];
#pragma unroll
  for (int o = 16; o > 0; o /= 2) constant += __shfl_xor_sync(~0u, constant, o);
  __syncwarp();
  const int block = first_block + lane;
  if (block >= item.means) return;
  const int turn = ((item.first_mean + block) * kMeanBlock + kMeanBlock / 2) / kTurnStep;
  const float2* const turns = call.turns_by_pair + turn;
  const std::int64_t at =
      static_cast<std::int64_t>(group) * call.total_means + item.means_before + block;
  const int steps = call.mean_terms / 16;
  __half* const to = reinterpret_cast<__half*>(
      call.folded + (at * (call.padded_queries / 8) + query / 8) * steps * 32);
  const int alone = call.mean_alone, evens = alone + (call.mean_slow > 0 ? kMeanOrders - 1 : 0);
  for (int j = 0; j < alone; ++j) {
    const float2 t = __ldg(turns + static_cast<std::int64_t>(j) * call.turn_count), w = products[j];
    to[folded_place(j, query)] = __float2half(w.x * t.x + w.y * t.y);
    to[folded_place(evens + j, query)] = __float2half(w.y * t.x - w.x * t.y);
  }
  int used = evens + alone;
  if (call.mean_slow > 0) {
    float even[kMeanOrders] = {}, odd[kMeanOrders] = {};
    for (int j = alone; j < pairs; ++j) {
      const float2 t = __ldg(turns + static_cast<std::int64_t>(j) * call.turn_count),
                   w = products[j];
      const float a = w.x * t.x + w.y * t.y, b = w.y * t.x - w.x * t.y;
      const float4* const by =
          reinterpret_cast<const float4*>(call.mean_slow_table) + 2 * (j - alone);
      const float4 e = __ldg(by), d = __ldg(by + 1);
      even[0] += a * e.x, even[1] += a * e.y, even[2] += a * e.z, even[3] += a * e.w;
      odd[0] += b * d.x, odd[1] += b * d.y, odd[2] += b * d.z, odd[3] += b * d.w;
    }
    constant += even[0];
#pragma unroll
    for (int m = 1; m < kMeanOrders; ++m) {
      to[folded_place(alone + m - 1, query)] = __float2half(even[m]);
    }
#pragma unroll
    for (int m = 0; m < kMeanOrders; ++m) {
      to[folded_place(used + m, query)] = __float2half(odd[m]);
    }
    used += kMeanOrders;
  }
  for (int k = used; k < call.mean_terms; ++k) to[folded_place(k, query)] = __float2half(0.0f);
  call.folded_constants[at * call.padded_queries + query] = constant;
}

}  // namespace kvspan::cuda
