// SPDX-License-Identifier: Apache-2.0
// Attention over coded tokens: a block goes through the tiles of its part of a sequence and leaves
// one partial result.
//
// Weights times gains are rounded to 8 bits of a power of two that follows the largest so far: when
// it grows, sums are shifted. A weight is rounded down after something between 0 and 1 was added
// that differs from token to token, so that weights far below the unit count as often as they
// should.
#pragma once

#include "cuda/bands/attend_bands.cuh"
#include "cuda/kernels/softmax.cuh"

namespace kvspan::cuda {

// Parts of a power of two that weights are rounded to: what is added when rounding is still a byte.
inline constexpr float kWeightUnits = 254.0f;

// Where things lie in shared memory.
template <class Shape>
struct AttendMemory {
  int mean_table, rings, weights, maxima, sums, barriers, bytes;
  __host__ __device__ AttendMemory(int mean_terms, int tile_bytes, int places) {
    mean_table = 0;
    rings = mean_terms * kMeanBlock * 2;
    const int ring = Shape::kTeams * Shape::kStages * Shape::kTeam * tile_bytes;
    const int reduce = Shape::kTeams * Shape::kRows * (places + 4) * 4;  // when all is read
    weights = rings + (ring > reduce ? ring : reduce);
    maxima = weights + 2 * Shape::kTeams * Shape::kRows * Shape::kWeightStride * 4;
    sums = maxima + Shape::kWarps * Shape::kRows * 4;
    barriers = sums + Shape::kWarps * Shape::kRows * 8;
    bytes = barriers + Shape::kTeams * Shape::kStages * 8;
  }
};

template <int kTeam>
__device__ __forceinline__ void team_barrier(int team) {
  if constexpr (kTeam == 1) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(32 * kTeam) : "memory");
  }
}

// Whether any thread of the team says so; a barrier too.
template <int kTeam>
__device__ __forceinline__ bool any_of_team(int team, bool own) {
  if constexpr (kTeam == 1) return __any_sync(~0u, own);
  int found;
  asm volatile(
      "{.reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.cta.red.or.pred q, %2, %3, p; selp.u32 %0, "
      "1, 0, q;}"
      : "=r"(found)
      : "r"(static_cast<int>(own)), "r"(team + 1), "n"(32 * kTeam)
      : "memory");
  return found != 0;
}

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
      scales[n] = *reinterpret_cast<const float4*>(from + 8 * n + 2 * c);
    }
  }
  __device__ __forceinline__ void load_mean(const float* tile_constants, const uint2* tile_folded,
                                            int steps, int c) {
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
      constants[n] = *reinterpret_cast<const float2*>(tile_constants + 8 * n + 2 * c);
#pragma unroll
      for (int s = 0; s < kFirstSteps; ++s) {
        if (s < steps) folded[n][s] = tile_folded[(n * steps + s) * 32];
      }
    }
  }
};

// Bits of the tokens of a tile that lie in `coded` and have not escaped.
__device__ __forceinline__ std::uint32_t seen_tokens(const Range& coded, int tile,
                                                     std::uint32_t escaped) {
  const int first = tile * kTileTokens;
  std::uint32_t bits = ~escaped;
  if (first < coded.first) {
    bits = first + kTileTokens <= coded.first ? 0u : bits & (~0u << (coded.first - first));
  }
  if (first + kTileTokens > coded.last) {
    bits = first >= coded.last ? 0u : bits & (~0u >> (first + kTileTokens - coded.last));
  }
  return bits;
}

// Scores of the thread's four tokens for each of its queries: v[n][e][b]. table: the mean's, of this
// tile and thread.
template <class Shape>
__device__ __forceinline__ void finish_scores(const AttendCall& call,
                                              const TileOperands<Shape::kRows8>& operands,
                                              const uint2* tile_folded, const uint4* table,
                                              std::uint32_t seen, int g, const float (&gain)[4],
                                              const ScoreSums<Shape>& sums,
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
      const uint2 q = tile_folded[(n * steps + s) * 32];
      mma_f16(mean[0][n], low, q);
      mma_f16(mean[1][n], high, q);
    }
  }
#pragma unroll
  for (int n = 0; n < kRows8; ++n) {
    const float4 scale = operands.scales[n];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float unit = e == 0 ? scale.x : scale.z;
      const int levels = __float_as_int(e == 0 ? scale.y : scale.w);
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        v[n][e][b] = fmaf(score_of<Shape>(sums, n, e, b, levels), unit * gain[b],
                          mean[b / 2][n][b % 2 * 2 + e]);
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
  if (seen != ~0u) {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      if ((seen >> token_at(g, b) & 1u) != 0) continue;
#pragma unroll
      for (int n = 0; n < kRows8; ++n) v[n][0][b] = v[n][1][b] = kUnseen;
    }
  }
}

// The tokens that a block works on, in steps of kTeam tiles, as shares of its teams.
template <class Shape>
struct AttendPart {
  int item, first_step, steps, shares, first_share;

  __device__ __forceinline__ AttendPart(const AttendCall& call, int part) : item(0) {
#pragma unroll 1
    while (item + 1 < call.item_count && call.parts_before[item + 1] <= part) ++item;
    const AttendItem& own = call.items[item];
    constexpr int kTokens = Shape::kTeam * kTileTokens;
    first_step = own.coded.first / kTokens;
    steps = (own.coded.last + kTokens - 1) / kTokens - first_step;
    shares = own.parts * Shape::kTeams;
    first_share = (part - call.parts_before[item]) * Shape::kTeams;
  }
  // At most 2^24 tokens in 1,024 parts of 8 teams: products stay below 2^32.
  __device__ __forceinline__ int cut(int share) const {
    return first_step + static_cast<int>(static_cast<unsigned>(steps) *
                                         static_cast<unsigned>(share) /
                                         static_cast<unsigned>(shares));
  }
};

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attend_bands_kernel(const __grid_constant__ AttendCall call) {
  constexpr int kRows8 = Shape::kRows8, kRows = Shape::kRows, kTeam = Shape::kTeam;
  extern __shared__ __align__(128) char shared[];
  ask_for_parameters(call);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
  const int team = warp / kTeam, rank = warp % kTeam;
  const int part_index = blockIdx.x, group = blockIdx.y;
  cudaTriggerProgrammaticLaunchCompletion();  // what merges the parts waits itself
  const AttendPart<Shape> part(call, part_index);
  const AttendItem& item = call.items[part.item];
  const AttendMemory<Shape> memory(call.mean_terms, call.most_tile_bytes,
                                   call.chunks * kChunkPlaces);
  const int tile_bytes = call.tile_bytes[group];
  char* const ring = shared + memory.rings + team * Shape::kStages * kTeam * call.most_tile_bytes;
  std::uint32_t* const all_weights = reinterpret_cast<std::uint32_t*>(shared + memory.weights) +
                                     team * 2 * kRows * Shape::kWeightStride;
  float* const maxima = reinterpret_cast<float*>(shared + memory.maxima) + team * kTeam * kRows;
  std::uint64_t* const barriers =
      reinterpret_cast<std::uint64_t*>(shared + memory.barriers) + team * Shape::kStages;

  // Steps of the team. Asked for by one thread; pages are looked up one page ahead of their first
  // tile.
  const int begin = part.cut(part.first_share + team), end = part.cut(part.first_share + team + 1);
  const std::byte* const pool = call.code_pool + call.group_offsets[group];
  constexpr int kPageTiles = kPageTokens / kTileTokens;
  const bool asks = rank == 0 && lane == 0;
  const int pages = (item.coded.last + kPageTokens - 1) / kPageTokens;
  const std::byte* source = nullptr;
  std::int32_t next_page = 0;
  int asked = begin, ask_slot = 0, next_index = 0;
  if (asks && begin < end) {
    const int first_tile = begin * kTeam;
    next_index = first_tile / kPageTiles;
    source = pool + __ldg(item.code_pages + next_index) * call.code_page_bytes +
             static_cast<std::int64_t>(first_tile % kPageTiles) * tile_bytes;
    ++next_index;
    if (next_index < pages) next_page = __ldg(item.code_pages + next_index);
  }
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

  {  // The mean's table, and barriers.
    const int count = call.mean_terms * kMeanBlock * 2 / 16;
#pragma unroll 2
    for (int i = threadIdx.x; i < count; i += Shape::kThreads) {
      reinterpret_cast<uint4*>(shared)[i] = __ldg(call.mean_table + i);
    }
    if (asks) {
      for (int s = 0; s < Shape::kStages; ++s) make_barrier(barriers + s);
      publish_barriers();
    }
  }
  __syncthreads();
  if (asks) {
    while (asked < end && asked < begin + Shape::kStages) ask();
  }
  cudaGridDependencySynchronize();  // moved and folded queries are there

  ChunkSums<Shape> acc[Shape::kChunks] = {};
  RunningSoftmax<kRows8> state;
  const UnpackLane unpack(lane);
  const std::uint8_t* const widths = call.chunk_widths + group * kMaxChunks + rank * Shape::kChunks;
  const std::int32_t* const offsets =
      call.chunk_offsets + group * kMaxChunks + rank * Shape::kChunks;
  const int mean_steps = call.mean_terms / 16;
  const Range coded = item.coded;
  // Tiles of a step that the item does not reach meet the last blocks that it does.
  const int last_anchor = item.anchors - 1, last_mean = item.means - 1;
  const std::int64_t first_anchor =
      static_cast<std::int64_t>(group) * call.total_anchors + item.anchors_before;
  const std::int64_t first_mean =
      static_cast<std::int64_t>(group) * call.total_means + item.means_before;
  constexpr int kMeanTiles = kMeanBlock / kTileTokens;
  TileOperands<kRows8> operands;
  const std::int8_t* moved = nullptr;
  const uint2* folded = nullptr;
  int next_anchor = 0, mean_block = -1, slot = 0;
  std::uint32_t parity = 0;

#pragma unroll 1
  for (int step = begin; step < end; ++step) {
    const int tile = step * kTeam + rank;
    if (step == begin || tile * kTileTokens >= next_anchor) {
      const int anchor = tile * kTileTokens / call.anchor;
      next_anchor = (anchor + 1) * call.anchor;
      const std::int64_t at = first_anchor + min(max(anchor - item.first_anchor, 0), last_anchor);
      moved = call.moved + at * (call.chunks * kRows * 64);
      operands.load_scales(call.moved_scales + at * kRows, c);
    }
    if (tile / kMeanTiles != mean_block) {
      mean_block = tile / kMeanTiles;
      const std::int64_t at = first_mean + min(max(mean_block - item.first_mean, 0), last_mean);
      folded = call.folded + at * kRows8 * mean_steps * 32 + lane;
      operands.load_mean(call.folded_constants + at * kRows, folded, mean_steps, c);
    }
    wait_barrier(barriers + slot, parity);
    const std::uint32_t tiles =
        shared_address(ring + slot * kTeam * call.most_tile_bytes);
    const auto* const tail = reinterpret_cast<const std::uint32_t*>(
        ring + slot * kTeam * call.most_tile_bytes + (rank + 1) * tile_bytes - kTileTail);

    ScoreSums<Shape> sums;
    score_tile<Shape>(call, group, tiles + static_cast<unsigned>(rank * tile_bytes), moved, unpack,
                      g, c, sums);
    float v[kRows8][2][4], log_gain[4], gain[4];
    const std::uint32_t gains = tail[g];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      log_gain[b] = 0.125f * static_cast<float>(static_cast<std::int8_t>(gains >> (8 * b)));
      gain[b] = exp2_approx(log_gain[b]);
    }
    const uint4* const table = reinterpret_cast<const uint4*>(shared) +
                               tile % kMeanTiles * 2 * mean_steps * 32 + lane;
    finish_scores<Shape>(call, operands, folded, table, seen_tokens(coded, tile, tail[8]), g, gain,
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
    const bool any = any_of_team<kTeam>(team, grows);
    // All of the team are done with the step before: its slot can be filled again.
    if (kTeam > 1 && asks && step > begin && asked < end) ask();
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
            for (int f = 0; f < 4; ++f) {
              acc[k][f][n][e] >>= by;
              acc[k][f][n][e + 2] >>= by;
            }
          }
        }
      }
    }
    // What is added before rounding, in 256ths of a unit: multiples of the golden ratio, spread
    // evenly over tokens. A weight has 8 bits after the point in the number's lowest bits.
    float offset[4];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const auto token = static_cast<std::uint32_t>(tile * kTileTokens + token_at(g, b));
      offset[b] = __uint_as_float(__byte_perm(token * 2654435769u, 0x4b400000, 0x7653));
      gain[b] *= 256.0f * kWeightUnits;
    }
    std::uint32_t* const weights = all_weights + step % 2 * kRows * Shape::kWeightStride;
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        std::uint32_t byte[4];
#pragma unroll
        for (int b = 0; b < 4; ++b) {
          const float w = exp2_approx(v[n][e][b] - state.most[n][e]);
          state.weights[n][e] += w;
          byte[b] = __float_as_uint(fmaf(w, gain[b], offset[b]));
        }
        const std::uint32_t packed = __byte_perm(__byte_perm(byte[0], byte[1], 0x0051),
                                                 __byte_perm(byte[2], byte[3], 0x0051), 0x5410);
        state.rounded[n][e] += static_cast<float>(__dp4a(packed, 0x01010101u, 0u));
        weights[(8 * n + 2 * c + e) * Shape::kWeightStride + 8 * rank + g] = packed;
      }
    }
    team_barrier<kTeam>(team);
#pragma unroll 1
    for (int t = 0; t < kTeam; ++t) {
      const std::uint32_t codes = tiles + static_cast<unsigned>(t * tile_bytes);
      std::uint32_t w[kRows8][2];
#pragma unroll
      for (int n = 0; n < kRows8; ++n) {
        const std::uint32_t* const row = weights + (8 * n + g) * Shape::kWeightStride + 8 * t + c;
        w[n][0] = row[0];
        w[n][1] = row[4];
      }
#pragma unroll
      for (int k = 0; k < Shape::kChunks; ++k) {
        if (!Shape::kUniform2 && rank * Shape::kChunks + k >= call.chunks) break;
        if constexpr (Shape::kUniform2) {
          sum_chunk_2<Shape>(
              codes + static_cast<unsigned>((rank * Shape::kChunks + k) * kPlaneBytes), unpack, w,
              acc[k]);
        } else {
          sum_chunk_of<Shape>(__ldg(widths + k),
                              codes + 4 * static_cast<unsigned>(__ldg(offsets + k)), unpack, w,
                              acc[k]);
        }
      }
    }
    if constexpr (kTeam == 1) {
      __syncwarp();
      if (asks && asked < end) ask();
    }
    slot = slot + 1 == Shape::kStages ? 0 : slot + 1;
    parity ^= slot == 0 ? 1u : 0u;
  }

  // What merging reads next: each block asks for a share of it.
  if (threadIdx.x == 0) {
    const std::int64_t bytes = static_cast<std::int64_t>(call.group_heads) * call.value_dim *
                               call.chunks * kChunkPlaces * 2;
    const std::int64_t share = (bytes / call.total_parts + 255) / 256 * 256;
    ask_early(reinterpret_cast<const char*>(call.value_basis) + group * bytes + part_index * share,
              min(share, bytes - part_index * share));
  }

  // Softmax states of the team's warps, then of the block.
  float* const block_maxima = reinterpret_cast<float*>(shared + memory.maxima);
  float2* const block_sums = reinterpret_cast<float2*>(shared + memory.sums);
  team_barrier<kTeam>(team);  // nobody reads the team's maxima any more
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
      for (int w = 0; w < Shape::kWarps; w += kTeam) {
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
        numbers_of<Shape>(acc[k], width, n, e, x);
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = (x[j] - bias) * factor;
        float* const to = reduce + (team * kRows + query) * stride +
                          (rank * Shape::kChunks + k) * kChunkPlaces + 8 * g;
        *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
        *reinterpret_cast<float4*>(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
      }
    }
  }
  __syncthreads();
  const std::int64_t at = static_cast<std::int64_t>(group) * call.total_parts + part_index;
  float2* const states =
      reinterpret_cast<float2*>(shared + memory.weights);  // nobody reads weights now
  if (threadIdx.x < kRows) {
    const int query = threadIdx.x;
    float whole = kNothing, sum = 0.0f;
    for (int w = 0; w < Shape::kWarps; w += kTeam) {
      whole = fmaxf(whole, block_maxima[w * kRows + query]);
    }
    for (int w = 0; w < Shape::kWarps; ++w) {
      const float most = block_maxima[w / kTeam * kTeam * kRows + query];
      sum += block_sums[w * kRows + query].x * exp2_approx(most - whole);
    }
    states[query] = make_float2(whole, sum);
    call.part_states[at * kRows + query] = states[query];
  }
  __syncthreads();
#pragma unroll 1
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
    __half2 both[2] = {__floats2half2_rn(sum.x * inverse, sum.y * inverse),
                       __floats2half2_rn(sum.z * inverse, sum.w * inverse)};
    *reinterpret_cast<uint2*>(call.part_means + (at * kRows + query) * places + p) =
        *reinterpret_cast<const uint2*>(both);
  }
}

}  // namespace kvspan::cuda
