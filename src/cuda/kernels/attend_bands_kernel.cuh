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
  float rounded[kRows8][2];  // of weights times gains as they were rounded, in kWeightUnits

  __device__ __forceinline__ RunningSoftmax() {
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) most[n][e] = kNothing, weights[n][e] = 0.0f, rounded[n][e] = 0.0f;
    }
  }
};

// What a tile's scores need beside its codes and the moved queries; kept from tile to tile.
template <int kRows8>
struct TileOperands {
  static constexpr int kFirstSteps = 3;  // of the mean's products, the others are asked for late
  float4 scales[kRows8];                 // of queries 8 n + 2 c and + 1: scale, sum of levels
  float2 constants[kRows8];              // of the mean
  uint2 folded[kRows8][kFirstSteps];

  __device__ __forceinline__ void load_scales(const float2* from, int c) {
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
      scales[n] = __ldg(reinterpret_cast<const float4*>(from + 8 * n + 2 * c));
    }
  }
  __device__ __forceinline__ void load_mean(const float* tile_constants, const uint2* tile_folded,
                                            int steps, int c) {
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
      constants[n] = __ldg(reinterpret_cast<const float2*>(tile_constants + 8 * n + 2 * c));
#pragma unroll
      for (int s = 0; s < kFirstSteps; ++s) {
        if (s < steps) folded[n][s] = __ldg(tile_folded + (n * steps + s) * 32);
      }
    }
  }
};

// Scores of the thread's four tokens for each of its queries: v[n][e][b], token 4 g + b of the
// tile. table: the mean's, of this tile and thread. seen: bits of the tokens that count.
template <class Shape>
__device__ __forceinline__ void finish_scores(const AttendCall& call,
                                              const TileOperands<Shape::kRows8>& operands,
                                              const uint2* tile_folded, const uint4* table,
                                              std::uint32_t seen, const float (&gain)[4],
                                              const int (&sums)[2][Shape::kRows8][4],
                                              float (&v)[Shape::kRows8][2][4]) {
  constexpr int kRows8 = Shape::kRows8;
  float mean[2][kRows8][4];
#pragma unroll
  for (int n = 0; n < kRows8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      mean[half][n][0] = mean[half][n][2] = operands.constants[n].x;
      mean[half][n][1] = mean[half][n][3] = operands.constants[n].y;
    }
  }
  const int steps = call.mean_terms / 16;
#pragma unroll
  for (int s = 0; s < TileOperands<kRows8>::kFirstSteps; ++s) {
    if (s >= steps) break;
    const uint4 low = table[s * 32], high = table[(steps + s) * 32];
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
      mma_f16(mean[0][n], low, operands.folded[n][s]);
      mma_f16(mean[1][n], high, operands.folded[n][s]);
    }
  }
#pragma unroll 1
  for (int s = TileOperands<kRows8>::kFirstSteps; s < steps; ++s) {
    const uint4 low = table[s * 32], high = table[(steps + s) * 32];
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
      const uint2 q = __ldg(tile_folded + (n * steps + s) * 32);
      mma_f16(mean[0][n], low, q);
      mma_f16(mean[1][n], high, q);
    }
  }
#pragma unroll
  for (int n = 0; n < kRows8; ++n) {
    const float4 scale = operands.scales[n];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float unit = (e == 0 ? scale.x : scale.z) * (1.0f / Shape::kUnit);
      const int level = __float_as_int(e == 0 ? scale.y : scale.w) * (Shape::kUnit / 2);
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const int sum = sums[b / 2][n][b % 2 * 2 + e] - level;
        v[n][e][b] = fmaf(static_cast<float>(sum), unit * gain[b], mean[b / 2][n][b % 2 * 2 + e]);
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
  if (seen != 15u) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
#pragma unroll
      for (int n = 0; n < kRows8; ++n) {
        if ((seen >> b & 1) == 0) v[n][0][b] = v[n][1][b] = kUnseen;
      }
    }
  }
}

// Bits of the thread's tokens 4 g .. 4 g + 3 of a tile that lie in `coded` and have not escaped.
__device__ __forceinline__ std::uint32_t seen_bits(const Range& coded, int tile, int g,
                                                   std::uint32_t escaped) {
  const int first = tile * kTileTokens;
  std::uint32_t bits = ~escaped;
  if (first < coded.first) {
    bits = first + kTileTokens <= coded.first ? 0u : bits & (~0u << (coded.first - first));
  }
  if (first + kTileTokens > coded.last) {
    bits = first >= coded.last ? 0u : bits & (~0u >> (first + kTileTokens - coded.last));
  }
  return bits >> (4 * g) & 15u;
}

template <class Shape, int kBlocks>
__global__ void __launch_bounds__(Shape::kThreads, kBlocks)
    attend_bands_kernel(const __grid_constant__ AttendCall call) {
  constexpr int kRows8 = Shape::kRows8, kRows = Shape::kRows, kTeam = Shape::kTeam;
  extern __shared__ __align__(128) char shared[];
  ask_for_parameters(call);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
  const int team = warp / kTeam, rank = warp % kTeam;
  const int part = blockIdx.x, group = blockIdx.y;
  const AttendItem& item = call.items[find_item(call, part)];
  const int tile_bytes = call.tile_bytes[group];
  const AttendMemory<Shape> memory(call.mean_terms, call.most_tile_bytes,
                                   call.chunks * kChunkPlaces);
  char* const ring = shared + memory.rings + team * Shape::kStages * kTeam * call.most_tile_bytes;
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
  const int last_step = (item.coded.last + kTeam * kTileTokens - 1) / (kTeam * kTileTokens);
  const int shares = item.parts * Shape::kTeams;
  const int share = (part - item.parts_before) * Shape::kTeams + team;
  const auto cut = [&](int s) {
    return first_step +
           static_cast<int>(static_cast<std::int64_t>(last_step - first_step) * s / shares);
  };
  const int begin = cut(share), end = cut(share + 1);
  const std::byte* const pool = call.code_pool + call.group_offsets[group];
  // Asked for by one thread, step by step; pages are looked up one page ahead of their first tile.
  constexpr int kPageTiles = kPageTokens / kTileTokens;
  const bool asks = rank == 0 && lane == 0;
  const int pages = (item.coded.last + kPageTokens - 1) / kPageTokens;
  const std::byte* source = nullptr;
  std::int32_t next_page = 0;
  int asked = begin, ask_slot = 0, next_index = 0;
  const auto ask = [&] {
    const int tile = asked * kTeam % kPageTiles;
    if (tile == 0 && asked != begin) {
      source = pool + next_page * call.code_page_bytes;
      ++next_index;
      if (next_index < pages) next_page = __ldg(item.code_pages + next_index);
    }
    copy_bulk(ring + ask_slot * kTeam * call.most_tile_bytes, source, kTeam * tile_bytes,
              barriers + ask_slot);
    source += kTeam * tile_bytes;
    ++asked;
    ask_slot = ask_slot + 1 == Shape::kStages ? 0 : ask_slot + 1;
  };
  if (asks && begin < end) {
    const int first_tile = begin * kTeam;
    next_index = first_tile / kPageTiles;
    source = pool + __ldg(item.code_pages + next_index) * call.code_page_bytes +
             static_cast<std::int64_t>(first_tile % kPageTiles) * tile_bytes;
    ++next_index;
    if (next_index < pages) next_page = __ldg(item.code_pages + next_index);
    while (asked < end && asked < begin + Shape::kStages) ask();
  }

  int acc[Shape::kChunks][4][kRows8][4] = {};
  RunningSoftmax<kRows8> state;
  const std::uint8_t* const widths = call.chunk_widths + group * kMaxChunks + rank * Shape::kChunks;
  const std::int32_t* const offsets =
      call.chunk_offsets + group * kMaxChunks + rank * Shape::kChunks;

  // What belongs to an anchor and to a block of the mean is asked for when a tile is the first of
  // one.
  const std::int64_t first_anchor = static_cast<std::int64_t>(group) * call.total_anchors +
                                    item.anchors_before - item.first_anchor;
  const std::int64_t first_mean =
      static_cast<std::int64_t>(group) * call.total_means + item.means_before - item.first_mean;
  const int mean_steps = call.mean_terms / 16;
  const Range coded = item.coded;
  constexpr int kMeanTiles = kMeanBlock / kTileTokens;
  TileOperands<kRows8> operands;
  const std::int8_t* moved = nullptr;
  const uint2* folded = nullptr;
  int next_anchor = 0, slot = 0;
  std::uint32_t parity = 0;

#pragma unroll 1
  for (int step = begin; step < end; ++step) {
    const int tile = step * kTeam + rank;
    if (step == begin || tile * kTileTokens >= next_anchor) {
      const int anchor = tile * kTileTokens / call.anchor;
      next_anchor = (anchor + 1) * call.anchor;
      moved = call.moved + (first_anchor + anchor) * (call.chunks * kRows * 64);
      operands.load_scales(call.moved_scales + (first_anchor + anchor) * kRows, c);
    }
    if (step == begin || kTeam > 1 || tile % kMeanTiles == 0) {
      const std::int64_t at = first_mean + tile / kMeanTiles;
      folded = call.folded + at * kRows8 * mean_steps * 32 + lane;
      operands.load_mean(call.folded_constants + at * kRows, folded, mean_steps, c);
    }
    wait_barrier(barriers + slot, parity);
    const char* const tiles = ring + slot * kTeam * call.most_tile_bytes;
    const auto* const own = reinterpret_cast<const std::uint32_t*>(tiles + rank * tile_bytes);
    const std::uint32_t* const tail = own + (tile_bytes - kTileTail) / 4;

    int sums[2][kRows8][4] = {};
    score_tile<Shape>(call, group, own, moved, g, c, sums);
    float v[kRows8][2][4], log_gain[4], gain[4];
    const std::uint32_t gains = tail[g];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      log_gain[b] = 0.125f * static_cast<float>(static_cast<std::int8_t>(gains >> (8 * b)));
      gain[b] = exp2_approx(log_gain[b]);
    }
    const uint4* const table = reinterpret_cast<const uint4*>(shared) +
                               tile % (kMeanBlock / kTileTokens) * 2 * mean_steps * 32 + lane;
    finish_scores<Shape>(call, operands, folded, table, seen_bits(coded, tile, g, tail[8]), gain,
                         sums, v);

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
          if (!__any_sync(~0u, by > 0)) continue;
          const float factor = exp2_approx(state.most[n][e] - next);
          state.most[n][e] = next;
          state.weights[n][e] *= factor;
          state.rounded[n][e] *= factor;
#pragma unroll
          for (int k = 0; k < Shape::kChunks; ++k) {
#pragma unroll
            for (int m = 0; m < 4; ++m) {
              acc[k][m][n][e] >>= by;
              acc[k][m][n][e + 2] >>= by;
            }
          }
        }
      }
    }
    // Rounding begins at another place for each token, spread evenly (multiples of the golden
    // ratio): weights far below the unit count as often as they should instead of never.
    float dither[4];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const std::uint32_t token = static_cast<std::uint32_t>(tile * kTileTokens + 4 * g + b);
      dither[b] = __uint_as_float(0x3f800000u | (token * 2654435769u) >> 9) - 1.5f;
    }
#pragma unroll
    for (int b = 0; b < 4; ++b) gain[b] *= kWeightUnits;
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
          byte[b] = __float_as_uint(fmaf(w, gain[b], dither[b]) + 12582912.0f);
        }
        const std::uint32_t packed = __byte_perm(__byte_perm(byte[0], byte[1], 0x0040),
                                                 __byte_perm(byte[2], byte[3], 0x0040), 0x5410);
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
        // A team of one warp is for exactly so many chunks of one width (find_variant).
        if (!(Shape::kUniform2 && kTeam == 1) && rank * Shape::kChunks + k >= call.chunks) break;
        if constexpr (Shape::kUniform2) {
          sum_chunk_of<Shape>(2, codes + (rank * Shape::kChunks + k) * chunk_words(2), g, c, w,
                              acc[k]);
        } else {
          sum_chunk_of<Shape>(__ldg(widths + k), codes + __ldg(offsets + k), g, c, w, acc[k]);
        }
      }
    }
    team_barrier<kTeam>(team);  // the slot and the weights have been read
    if (asks && asked < end) ask();
    slot = slot + 1 == Shape::kStages ? 0 : slot + 1;
    parity ^= slot == 0 ? 1u : 0u;
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
      const float factor = exp2_approx(state.most[n][e] - whole) / kWeightUnits;
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
  float2* const states =
      reinterpret_cast<float2*>(shared + memory.weights);  // nobody reads weights now
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
    states[query] = make_float2(whole, sum);
    call.part_states[at * kRows + query] = states[query];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kRows * places / 4; i += Shape::kThreads) {
    const int query = i / (places / 4), p = i % (places / 4) * 4;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int t = 0; t < Shape::kTeams; ++t) {
      const float4 x = *reinterpret_cast<const float4*>(reduce + (t * kRows + query) * stride + p);
      sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    // Means of levels times gains: f16 holds them to 2^-11, far below what their roundings leave
    // open.
    const float inverse = states[query].y > 0.0f ? 1.0f / states[query].y : 0.0f;
    __half2 halves[2] = {__floats2half2_rn(sum.x * inverse, sum.y * inverse),
                         __floats2half2_rn(sum.z * inverse, sum.w * inverse)};
    *reinterpret_cast<uint2*>(call.part_means + (at * kRows + query) * places + p) =
        *reinterpret_cast<const uint2*>(halves);
  }
}

}  // namespace kvspan::cuda
