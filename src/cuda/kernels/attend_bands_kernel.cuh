// SPDX-License-Identifier: Apache-2.0
// The kernel of attend_bands.cuh: loop over tiles, then one partial result for each block.
#pragma once

#include "cuda/kernels/attend_bands.cuh"

namespace kvspan::cuda {

// What a thread knows of the softmax of its queries 8 n + 2 c and + 1.
template <int kRows8>
struct RunningSoftmax {
  float most[kRows8][2];     // a whole number: weights count 2^-most
  float weights[kRows8][2];  // sums over the thread's tokens
  float rounded[kRows8][2];  // of weights times gains as they were rounded, in 255ths

  __device__ __forceinline__ RunningSoftmax() {
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) most[n][e] = kNothing, weights[n][e] = 0.0f, rounded[n][e] = 0.0f;
    }
  }
};

// Scores of the thread's four tokens for each of its queries: v[n][e][b], token 4 g + b of the tile.
template <class Shape>
__device__ __forceinline__ void finish_scores(const AttendCall& call, const AttendItem& item,
                                              int group, int tile, int g, int c, int lane,
                                              const char* shared, std::uint32_t gains,
                                              std::uint32_t escaped,
                                              const int (&sums)[2][Shape::kRows8][4],
                                              float (&v)[Shape::kRows8][2][4],
                                              float (&log_gain)[4], float (&gain)[4]) {
  constexpr int kRows8 = Shape::kRows8, kRows = Shape::kRows;
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    log_gain[b] = 0.125f * static_cast<float>(static_cast<std::int8_t>(gains >> (8 * b)));
    gain[b] = exp2_approx(log_gain[b]);
  }
  const int anchor = tile * kTileTokens / call.anchor - item.first_anchor;
  const float2* const scales =
      call.moved_scales +
      (static_cast<std::int64_t>(group) * call.total_anchors + item.anchors_before + anchor) *
          kRows;
  float mean[2][kRows8][4] = {};
  if (call.mean_terms > 0) {
    const int block = tile * kTileTokens / kMeanBlock - item.first_mean;
    const std::int64_t at =
        static_cast<std::int64_t>(group) * call.total_means + item.means_before + block;
    const int steps = call.mean_terms / 16;
    const uint2* const folded = call.folded + at * kRows8 * steps * 32 + lane;
    const uint4* const table = reinterpret_cast<const uint4*>(shared) +
                               tile % (kMeanBlock / kTileTokens) * 2 * steps * 32 + lane;
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
      const float2 constant = __ldg(reinterpret_cast<const float2*>(
          call.folded_constants + at * kRows + 8 * n + 2 * c));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        mean[half][n][0] = mean[half][n][2] = constant.x;
        mean[half][n][1] = mean[half][n][3] = constant.y;
      }
    }
#pragma unroll 1
    for (int s = 0; s < steps; ++s) {
      const uint4 low = table[s * 32], high = table[(steps + s) * 32];
#pragma unroll
      for (int n = 0; n < kRows8; ++n) {
        const uint2 q = __ldg(folded + (n * steps + s) * 32);
        mma_f16(mean[0][n], low, q);
        mma_f16(mean[1][n], high, q);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kRows8; ++n) {
    const float4 scale = __ldg(reinterpret_cast<const float4*>(scales + 8 * n + 2 * c));
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float unit = (e == 0 ? scale.x : scale.z) / Shape::kUnit;
      const int level = __float_as_int(e == 0 ? scale.y : scale.w) * (Shape::kUnit / 2);
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const int sum = sums[b / 2][n][b % 2 * 2 + e] - level;
        float x = fmaf(static_cast<float>(sum), unit * gain[b], mean[b / 2][n][b % 2 * 2 + e]);
        v[n][e][b] = x;
      }
    }
  }
  if (call.soft_cap > 0.0f) {
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int b = 0; b < 4; ++b) v[n][e][b] = capped(v[n][e][b], call.soft_cap);
      }
    }
  }
  const int first = tile * kTileTokens;
  if (escaped != 0 || first < item.coded.first || first + kTileTokens > item.coded.last) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int token = 4 * g + b;
      const bool seen = first + token >= item.coded.first && first + token < item.coded.last &&
                        (escaped >> token & 1) == 0;
#pragma unroll
      for (int n = 0; n < kRows8; ++n) {
        if (!seen) v[n][0][b] = v[n][1][b] = kUnseen;
      }
    }
  }
}

template <class Shape, int kBlocks>
__global__ void __launch_bounds__(Shape::kThreads, kBlocks)
    attend_bands_kernel(const __grid_constant__ AttendCall call) {
  constexpr int kRows8 = Shape::kRows8, kRows = Shape::kRows, kTeam = Shape::kTeam;
  extern __shared__ __align__(128) char shared[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
  const int team = warp / kTeam, rank = warp % kTeam;
  const int part = blockIdx.x, group = blockIdx.y;
  const AttendItem& item = call.items[find_item(call, part)];
  const int tile_bytes = call.tile_bytes[group];
  const AttendMemory<Shape> memory(call.mean_terms, call.most_tile_bytes,
                                   call.chunks * kChunkPlaces);
  char* const ring = shared + memory.rings +
                     team * Shape::kStages * kTeam * call.most_tile_bytes;
  std::uint32_t* const weights = reinterpret_cast<std::uint32_t*>(shared + memory.weights) +
                                 team * kRows * Shape::kWeightStride;
  float* const maxima = reinterpret_cast<float*>(shared + memory.maxima) + team * kTeam * kRows;
  std::uint64_t* const barriers =
      reinterpret_cast<std::uint64_t*>(shared + memory.barriers) + team * Shape::kStages;

  {  // The mean's table, and barriers.
    const int count = call.mean_terms * kMeanBlock * 2 / 16;
    for (int i = threadIdx.x; i < count; i += Shape::kThreads) {
      reinterpret_cast<uint4*>(shared)[i] = __ldg(call.mean_table + i);
    }
    if (rank == 0 && lane == 0) {
      for (int s = 0; s < Shape::kStages; ++s) make_barrier(barriers + s);
      publish_barriers();
    }
  }
  __syncthreads();

  // Steps of kTeam tiles: those of the item, of this part, of this team.
  const int first_step = item.coded.first / (kTeam * kTileTokens);
  const int last_step =
      (item.coded.last + kTeam * kTileTokens - 1) / (kTeam * kTileTokens);
  const int shares = item.parts * Shape::kTeams;
  const int share = (part - item.parts_before) * Shape::kTeams + team;
  const auto cut = [&](int s) {
    return first_step +
           static_cast<int>(static_cast<std::int64_t>(last_step - first_step) * s / shares);
  };
  const int begin = cut(share), end = cut(share + 1);
  const std::byte* const pool = call.code_pool + call.group_offsets[group];
  const auto ask_for = [&](int step) {
    const int slot = (step - begin) % Shape::kStages;
    const int tile = step * kTeam;
    const std::int64_t page = item.code_pages[tile * kTileTokens / kPageTokens];
    copy_bulk(ring + slot * kTeam * call.most_tile_bytes,
              pool + page * call.code_page_bytes +
                  static_cast<std::int64_t>(tile % (kPageTokens / kTileTokens)) * tile_bytes,
              kTeam * tile_bytes, barriers + slot);
  };
  if (rank == 0 && lane == 0) {
    for (int s = begin; s < end && s < begin + Shape::kStages; ++s) ask_for(s);
  }

  int acc[Shape::kChunks][4][kRows8][4] = {};
  RunningSoftmax<kRows8> state;
  const std::uint8_t* const widths = call.chunk_widths + group * kMaxChunks + rank * Shape::kChunks;
  const std::int32_t* const offsets =
      call.chunk_offsets + group * kMaxChunks + rank * Shape::kChunks;

#pragma unroll 1
  for (int step = begin; step < end; ++step) {
    const int slot = (step - begin) % Shape::kStages, tile = step * kTeam + rank;
    wait_barrier(barriers + slot, (step - begin) / Shape::kStages & 1);
    const char* const tiles = ring + slot * kTeam * call.most_tile_bytes;
    const auto* const own = reinterpret_cast<const std::uint32_t*>(tiles + rank * tile_bytes);
    const std::uint32_t* const tail = own + (tile_bytes - kTileTail) / 4;

    int sums[2][kRows8][4] = {};
    {
      const int anchor = tile * kTileTokens / call.anchor - item.first_anchor;
      const std::int8_t* const moved =
          call.moved + ((static_cast<std::int64_t>(group) * call.total_anchors +
                         item.anchors_before + anchor) *
                        call.chunks) *
                           (kRows * 64);
      score_tile<Shape>(call, group, own, moved, g, c, sums);
    }
    float v[kRows8][2][4], log_gain[4], gain[4];
    finish_scores<Shape>(call, item, group, tile, g, c, lane, shared, tail[g], tail[8], sums, v,
                         log_gain, gain);

    float most[kRows8][2];
    bool grows = false;
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        most[n][e] = fmaxf(fmaxf(v[n][e][0] + log_gain[0], v[n][e][1] + log_gain[1]),
                           fmaxf(v[n][e][2] + log_gain[2], v[n][e][3] + log_gain[3]));
        grows |= most[n][e] > state.most[n][e];
      }
    }
    bool any;
    if constexpr (kTeam == 1) {
      any = __any_sync(~0u, grows);
    } else {
      int found;
      asm volatile(
          "{.reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.cta.red.or.pred q, %2, %3, p; selp.u32 "
          "%0, 1, 0, q;}"
          : "=r"(found)
          : "r"(static_cast<int>(grows)), "r"(team + 1), "n"(32 * kTeam)
          : "memory");
      any = found != 0;
    }
    if (any) {
#pragma unroll
      for (int n = 0; n < kRows8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
#pragma unroll
          for (int o = 4; o < 32; o *= 2) {
            most[n][e] = fmaxf(most[n][e], __shfl_xor_sync(~0u, most[n][e], o));
          }
        }
      }
      if constexpr (kTeam > 1) {
        if (g == 0) {
#pragma unroll
          for (int n = 0; n < kRows8; ++n) {
            maxima[rank * kRows + 8 * n + 2 * c] = most[n][0];
            maxima[rank * kRows + 8 * n + 2 * c + 1] = most[n][1];
          }
        }
        team_barrier<kTeam>(team);
#pragma unroll
        for (int n = 0; n < kRows8; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            for (int r = 0; r < kTeam; ++r) {
              most[n][e] = fmaxf(most[n][e], maxima[r * kRows + 8 * n + 2 * c + e]);
            }
          }
        }
        team_barrier<kTeam>(team);
      }
#pragma unroll
      for (int n = 0; n < kRows8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float next = fmaxf(state.most[n][e], ceilf(most[n][e]));
          const int by = static_cast<int>(fminf(next - state.most[n][e], 31.0f));
          const int half = by > 0 ? 1 << (by - 1) : 0;
          const float factor = exp2_approx(state.most[n][e] - next);
          state.most[n][e] = next;
          state.weights[n][e] *= factor;
          state.rounded[n][e] *= factor;
#pragma unroll
          for (int k = 0; k < Shape::kChunks; ++k) {
#pragma unroll
            for (int m = 0; m < 4; ++m) {
              acc[k][m][n][e] = (acc[k][m][n][e] + half) >> by;
              acc[k][m][n][e + 2] = (acc[k][m][n][e + 2] + half) >> by;
            }
          }
        }
      }
    }
#pragma unroll
    for (int b = 0; b < 4; ++b) gain[b] *= 255.0f;
    // The warp has read the weights before, if it is alone.
    if constexpr (kTeam == 1) __syncwarp();
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        std::uint32_t byte[4];
#pragma unroll
        for (int b = 0; b < 4; ++b) {
          const float w = exp2_approx(v[n][e][b] - state.most[n][e]);
          state.weights[n][e] += w;
          // The number's lowest bits are the rounded weight.
          byte[b] = __float_as_uint(fmaf(w, gain[b], 12582912.0f));
        }
        const std::uint32_t packed =
            __byte_perm(__byte_perm(byte[0], byte[1], 0x0040), __byte_perm(byte[2], byte[3], 0x0040),
                        0x5410);
        state.rounded[n][e] += static_cast<float>(__dp4a(packed, 0x01010101u, 0u));
        weights[(8 * n + 2 * c + e) * Shape::kWeightStride + 8 * rank + g] = packed;
      }
    }
    team_barrier<kTeam>(team);
#pragma unroll 1
    for (int t = 0; t < kTeam; ++t) {
      const auto* const codes = reinterpret_cast<const std::uint32_t*>(tiles + t * tile_bytes);
      std::uint32_t w[kRows8][2];
#pragma unroll
      for (int n = 0; n < kRows8; ++n) {
        const std::uint32_t* const row = weights + (8 * n + g) * Shape::kWeightStride + 8 * t + c;
        w[n][0] = row[0];
        w[n][1] = row[4];
      }
#pragma unroll
      for (int k = 0; k < Shape::kChunks; ++k) {
        if (rank * Shape::kChunks + k >= call.chunks) break;
        if constexpr (Shape::kUniform2) {
          sum_chunk_of<Shape>(2, codes + (rank * Shape::kChunks + k) * chunk_words(2), g, c, w,
                              acc[k]);
        } else {
          sum_chunk_of<Shape>(__ldg(widths + k), codes + __ldg(offsets + k), g, c, w, acc[k]);
        }
      }
    }
    team_barrier<kTeam>(team);  // the slot and the weights have been read
    if (rank == 0 && lane == 0 && step + Shape::kStages < end) ask_for(step + Shape::kStages);
  }

  // Softmax states of the team's warps, then of the block.
  float* const block_maxima = reinterpret_cast<float*>(shared + memory.maxima);
  float2* const block_sums = reinterpret_cast<float2*>(shared + memory.sums);
#pragma unroll
  for (int n = 0; n < kRows8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int o = 4; o < 32; o *= 2) {
        state.weights[n][e] += __shfl_xor_sync(~0u, state.weights[n][e], o);
        state.rounded[n][e] += __shfl_xor_sync(~0u, state.rounded[n][e], o);
      }
      if (g == 0) {
        const int at = warp * kRows + 8 * n + 2 * c + e;
        block_maxima[at] = state.most[n][e];
        block_sums[at] = make_float2(state.weights[n][e], state.rounded[n][e]);
      }
    }
  }
  __syncthreads();
  const int places = call.chunks * kChunkPlaces, stride = places + 4;
  float* const reduce = reinterpret_cast<float*>(shared + memory.rings);
#pragma unroll
  for (int n = 0; n < kRows8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int query = 8 * n + 2 * c + e;
      float whole = kNothing, rounded = 0.0f;
      for (int w = 0; w < kTeam * Shape::kTeams; w += kTeam) {
        whole = fmaxf(whole, block_maxima[w * kRows + query]);
      }
      for (int r = 0; r < kTeam; ++r) rounded += block_sums[(team * kTeam + r) * kRows + query].y;
      const float factor = exp2_approx(state.most[n][e] - whole) / 255.0f;
#pragma unroll
      for (int k = 0; k < Shape::kChunks; ++k) {
        if (rank * Shape::kChunks + k >= call.chunks) break;
        const int width = Shape::kUniform2 ? 2 : widths[k];
        const float bias = 0.5f * static_cast<float>((1 << width) - 1) * rounded;
        float x[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float unit = __int_as_float((127 - sum_shift(width, j)) << 23);
          x[j] = (static_cast<float>(acc[k][j / 2][n][j % 2 * 2 + e]) * unit - bias) * factor;
        }
        float* const to = reduce + (team * kRows + query) * stride +
                          (rank * Shape::kChunks + k) * kChunkPlaces + 8 * g;
        *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
        *reinterpret_cast<float4*>(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
      }
    }
  }
  __syncthreads();
  const std::int64_t at = static_cast<std::int64_t>(group) * call.total_parts + part;
  for (int i = threadIdx.x; i < kRows * places / 4; i += Shape::kThreads) {
    const int query = i / (places / 4), p = i % (places / 4) * 4;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int t = 0; t < Shape::kTeams; ++t) {
      const float4 x = *reinterpret_cast<const float4*>(reduce + (t * kRows + query) * stride + p);
      sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    *reinterpret_cast<float4*>(call.part_sums + (at * kRows + query) * places + p) = sum;
  }
  if (threadIdx.x < kRows) {
    const int query = threadIdx.x;
    float whole = kNothing, sum = 0.0f;
    for (int w = 0; w < kTeam * Shape::kTeams; w += kTeam) {
      whole = fmaxf(whole, block_maxima[w * kRows + query]);
    }
    for (int w = 0; w < kTeam * Shape::kTeams; ++w) {
      const float most = block_maxima[w / kTeam * kTeam * kRows + query];
      sum += block_sums[w * kRows + query].x * exp2_approx(most - whole);
    }
    call.part_states[at * kRows + query] = make_float2(whole, sum);
  }
}

}  // namespace kvspan::cuda
