// SPDX-License-Identifier: Apache-2.0
// Attention over coded tokens: a block goes through the tiles of its part of a sequence and leaves
// one partial result.
#pragma once

#include <climits>

#include "cuda/bands/attend_bands.cuh"
#include "cuda/bands/attend_weights.cuh"

namespace kvspan::cuda {

// Where things lie in shared memory. A slot of a ring has a step's tiles; what queries make of the mean of keys
// has a ring of its own, and moved queries have two places.
template <class Shape>
struct AttendMemory {
  static constexpr int kBarriers = Shape::kTeams * (Shape::kStages + 2) + 1;
  int slot_bytes, fold_bytes, moved_bytes;
  int mean_table, rings, folded, moved, weights, maxima, states, rounded, units, barriers, bytes;
  __host__ __device__ AttendMemory(int mean_terms, int tile_bytes, int folded_bytes, int moved_size) {
    slot_bytes = Shape::kTeam * tile_bytes;
    fold_bytes = Shape::kStepMeans * folded_bytes;
    moved_bytes = Shape::kCopyQueries ? moved_size : 0;
    mean_table = 0;
    rings = mean_terms * kMeanBlock * 2;
    folded = rings + Shape::kTeams * Shape::kStages * slot_bytes;
    moved = folded + Shape::kTeams * Shape::kFoldSlots * fold_bytes;
    const int end = moved + Shape::kTeams * 2 * moved_bytes;
    const int reduce = rings + Shape::kWarps * Shape::kWarpSums * 4;  // when all is read
    weights = end > reduce ? end : reduce;
    maxima = weights + 2 * Shape::kTeams * Shape::kWeightBytes;
    states = maxima + 3 * Shape::kWarps * Shape::kRows * 4;
    rounded = states + Shape::kWarps * Shape::kRows * 8;
    units = rounded + Shape::kWarps * Shape::kRows * 4;
    barriers = units + kMaxUnits * 4;
    bytes = barriers + kBarriers * 8;
  }
  __host__ __device__ explicit AttendMemory(const AttendCall& call)
      : AttendMemory(call.mean_terms, call.most_tile_bytes, call.folded_bytes(), call.moved_bytes()) {}
};

// The tokens that a block works on, in steps of kTeam tiles, as shares of its teams.
template <class Shape>
struct AttendPart {
  int item, first_step, steps, shares, first_share;

  __device__ __forceinline__ AttendPart(const AttendCall& call, int part) : item(0) {
#pragma unroll 1
    while (item + 1 < call.plan().item_count && call.plan().parts_before[item + 1] <= part) ++item;
    const AttendItem& own = call.plan().items[item];
    constexpr int kTokens = Shape::kTeam * kTileTokens;
    first_step = own.coded.first / kTokens;
    steps = (own.coded.last + kTokens - 1) / kTokens - first_step;
    shares = own.parts * Shape::kTeams;
    first_share = (part - call.plan().parts_before[item]) * Shape::kTeams;
  }
  // At most 2^24 tokens in 1,024 parts of 8 teams: products stay below 2^32.
  __device__ __forceinline__ int cut(int share) const {
    return first_step + static_cast<int>(static_cast<unsigned>(steps) *
                                         static_cast<unsigned>(share) /
                                         static_cast<unsigned>(shares));
  }
};

// Of a step. One is enough for numbers, and a second where sums of them were rounded: what is no number
// (rows of a model that computes none) never fits, and must not keep the device for ever.
inline constexpr int kMostRaises = 4;

// What a team reads on its way to shared memory. One thread of its first warp asks for codes, kStages steps
// ahead, one of its second for folded queries, kFoldSteps steps at a time, and for moved ones, an anchor ahead.
// Pages are looked up one page ahead of their first tile. Warps go through all of this with their one thread, so
// that every instruction counts: in the loop what to ask for follows from the step at hand.
template <class Shape>
struct TeamCopies {
  static constexpr int kPageTiles = kPageTokens / kTileTokens, kPageSteps = kPageTiles / Shape::kTeam;
  static constexpr int kFoldSteps = Shape::kFoldSteps;
  const std::byte* group_pages;  // the group's codes, were they in the first of all pages
  const std::int32_t* code_pages;
  const std::byte *moved, *folded;  // of the item's first anchor and block
  const std::byte* source = nullptr;
  std::uint32_t slots, folded_slots, moved_slots;
  std::uint32_t barriers;  // of slots, then of moved queries
  std::int32_t next_page = 0;
  int step_bytes, slot_bytes, folded_bytes, moved_bytes, begin, end, next_fold;
  int next_index = 0, pages, first_mean, means, first_anchor, anchors, anchor, asked_anchor = 0;

  __device__ __forceinline__ TeamCopies(const AttendCall& call, const AttendItem& item, int group,
                                        const AttendMemory<Shape>& memory, std::uint32_t shared,
                                        int team, int first, int last)
      : group_pages(call.pages + call.group_offsets[group]),
        code_pages(item.code_pages),
        moved(call.moved +
              (static_cast<std::int64_t>(group) * call.plan().total_anchors + item.anchors_before) *
                  call.moved_bytes()),
        folded(call.folded +
               (static_cast<std::int64_t>(group) * call.plan().total_means + item.means_before) *
                   call.folded_bytes()),
        slots(shared + memory.rings + team * Shape::kStages * memory.slot_bytes),
        folded_slots(shared + memory.folded + team * Shape::kFoldSlots * memory.fold_bytes),
        moved_slots(shared + memory.moved + team * 2 * memory.moved_bytes),
        barriers(shared + memory.barriers + team * (Shape::kStages + 2) * 8),
        step_bytes(Shape::kTeam * call.tile_bytes[group]),
        slot_bytes(memory.slot_bytes),
        folded_bytes(call.folded_bytes()),
        moved_bytes(call.moved_bytes()),
        begin(first),
        end(last),
        next_fold(first),
        pages((item.coded.last + kPageTokens - 1) / kPageTokens),
        first_mean(item.first_mean),
        means(item.means),
        first_anchor(item.first_anchor),
        anchors(item.anchors),
        anchor(call.anchor) {}

  __device__ __forceinline__ const std::byte* page_at(std::int32_t page) const {
    return group_pages + std::int64_t{page} * kPageUnit;
  }
  // Where the first step begins.
  __device__ __forceinline__ void look_up() {
    if (begin >= end) return;
    next_index = begin / kPageSteps;
    source = page_at(__ldg(code_pages + next_index)) +
             static_cast<std::int64_t>(begin % kPageSteps) * step_bytes;
    look_ahead();
  }
  __device__ __forceinline__ void look_ahead() {
    ++next_index;
    if (next_index < pages) next_page = __ldg(code_pages + next_index);
  }
  // Codes of a step, to the slot at `to` with the barrier at `opens`. Steps come one after the other.
  __device__ __forceinline__ void ask_codes(int step, std::uint32_t to, std::uint32_t opens) {
    if (step % kPageSteps == 0 && step != begin) {
      source = page_at(next_page);
      look_ahead();
    }
    const bool folds = step % kFoldSteps == 0 || step == begin;
    expect_bytes(opens, static_cast<std::uint32_t>(step_bytes + (folds ? Shape::kStepMeans * folded_bytes : 0)));
    copy_stream(to, source, static_cast<std::uint32_t>(step_bytes), opens);
    source += step_bytes;
  }
  // Folded queries from step next_fold on: they open the barrier of that step's codes.
  __device__ __forceinline__ void ask_folded() {
    const std::uint32_t opens = barriers + static_cast<unsigned>((next_fold - begin) % Shape::kStages) * 8;
    const int of = next_fold / kFoldSteps;
    const std::uint32_t to =
        folded_slots + static_cast<unsigned>(of % Shape::kFoldSlots * Shape::kStepMeans * folded_bytes);
#pragma unroll
    for (int i = 0; i < Shape::kStepMeans; ++i) {
      // Tiles of a step that the item does not reach meet the last blocks that it does.
      const int block = of * Shape::kStepMeans + i - first_mean;
      copy_bulk(to + static_cast<unsigned>(i * folded_bytes),
                folded + static_cast<std::int64_t>(min(max(block, 0), means - 1)) * folded_bytes,
                static_cast<std::uint32_t>(folded_bytes), opens);
    }
    next_fold = (of + 1) * kFoldSteps;
  }
  __device__ __forceinline__ const std::byte* moved_of(int index) const {
    return moved + static_cast<std::int64_t>(min(max(index - first_anchor, 0), anchors - 1)) * moved_bytes;
  }
  // Moved queries up to those of anchor `index`, if a step still needs them.
  __device__ __forceinline__ void ask_moved(int index) {
    while (asked_anchor <= index && asked_anchor * anchor < end * Shape::kTeam * kTileTokens) {
      const int to = asked_anchor % 2;
      const std::uint32_t opens = barriers + static_cast<unsigned>(Shape::kStages + to) * 8;
      expect_bytes(opens, static_cast<std::uint32_t>(moved_bytes));
      copy_bulk(moved_slots + static_cast<unsigned>(to * moved_bytes), moved_of(asked_anchor),
                static_cast<std::uint32_t>(moved_bytes), opens);
      ++asked_anchor;
    }
  }
};

// Sums of the warp's chunks with the weights of a step. weights: of query g, tokens of c. own: where
// chunks lie in a tile, in bytes, and above 2^24 their widths; 0: no chunk.
template <class Shape>
__device__ __forceinline__ void add_step(std::uint32_t weights, std::uint32_t tiles, int tile_bytes,
                                         int rank, const std::uint32_t (&own)[Shape::kChunks],
                                         const UnpackLane& unpack,
                                         ChunkSums<Shape> (&acc)[Shape::kChunks]) {
  // Where widths differ, tiles at once for which the width is told apart once.
  constexpr int kTiles = !Shape::kUniform2 && Shape::kTeam == 2 ? 2 : 1;
#pragma unroll(Shape::kUniform2 && Shape::kTeam == 2 ? 2 : 1)
  for (int t = 0; t < Shape::kTeam; t += kTiles) {
    const std::uint32_t codes = tiles + static_cast<unsigned>(t * tile_bytes);
    std::uint32_t w[kTiles][Shape::kRows8][2];
#pragma unroll
    for (int i = 0; i < kTiles * Shape::kRows8; ++i) {
      const int of = i / Shape::kRows8, n = i % Shape::kRows8;
      const std::uint32_t row =
          weights + static_cast<unsigned>(8 * n * Shape::kWeightStride + 8 * (t + of)) * 4;
      w[of][n][0] = load_shared(row);
      w[of][n][1] = load_shared(row + 16);
    }
#pragma unroll
    for (int k = 0; k < Shape::kChunks; ++k) {
      if constexpr (Shape::kBlocks) {
        sum_chunk<Shape, 2>(
            codes + static_cast<unsigned>(Shape::chunk_of(rank, k) * kPairBytes), unpack, w[0],
            acc[k]);
      } else if constexpr (Shape::kSpare) {
        if (own[k] != 0) sum_chunk<Shape, 2>(codes + (own[k] & 0xffffffu), unpack, w[0], acc[k]);
      } else if (own[k] != 0) {
        const std::uint32_t chunk = codes + (own[k] & 0xffffffu);
        if (own[k] >> 24 == 2) {
          sum_tiles<Shape, 2, kTiles>(chunk, static_cast<unsigned>(tile_bytes), unpack, w, acc[k]);
        } else {
          sum_tiles<Shape, 1, kTiles>(chunk, static_cast<unsigned>(tile_bytes), unpack, w, acc[k]);
        }
      }
    }
  }
}

// Maxima and sums of weights of a warp, for all. any: it has met tokens.
template <class Shape>
__device__ __forceinline__ void leave_state(RunningSoftmax<Shape::kRows8>& state, bool any, int warp,
                                            int g, int c, float2* states, float* rounded) {
#pragma unroll
  for (int n = 0; n < Shape::kRows8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float sum = state.rounded_before[n][e] + static_cast<float>(state.rounded[n][e]);
#pragma unroll
      for (int o = 4; o < 32; o *= 2) {
        state.weights[n][e] += __shfl_xor_sync(~0u, state.weights[n][e], o);
        sum += __shfl_xor_sync(~0u, sum, o);
      }
      if (g == 0) {
        const int at = warp * Shape::kRows + 8 * n + 2 * c + e;
        states[at] = make_float2(any ? state.most[n][e] : kNothing, state.weights[n][e]);
        rounded[at] = sum;
      }
    }
  }
}

// How sums of the teams count in what the block leaves.
template <class Shape>
struct TeamFactors {
  float of_team[Shape::kTeams][Shape::kRows];
  float rounded[Shape::kRows];  // sums of rounded weights, all teams: what half a code's range counts
  int width[kMaxChunks];

  // Of one query, and its softmax in this part.
  __device__ __forceinline__ float2 merge(const float2* states, const float* sums, int query) {
    float2 own[Shape::kWarps];
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) own[w] = states[w * Shape::kRows + query];
    float whole = kNothing, sum = 0.0f, all = 0.0f;
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) whole = fmaxf(whole, own[w].x);
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) sum += own[w].y * exp2_approx(own[w].x - whole);
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
#pragma unroll
    for (int w = 0; w < Shape::kWarps; ++w) {  // warps of a team have one maximum
      const float factor = exp2_approx(own[w].x - whole - kWeightBits) * inverse;
      if (w % Shape::kTeam == 0) of_team[w / Shape::kTeam][query] = factor;
      all += factor * sums[w * Shape::kRows + query];
    }
    rounded[query] = all;
    return make_float2(whole, sum);
  }
};

// Means of the levels of eight places and two queries, of all teams. sums: as warps left them, from the
// first team's of this lane, chunk and eight queries on. query: the first of the two.
template <class Shape>
__device__ __forceinline__ void mean_levels(const TeamFactors<Shape>& factors, const int4* sums, int width,
                                            int query, float (&x)[2][8]) {
#pragma unroll
  for (int j = 0; j < 16; ++j) x[j / 8][j % 8] = 0.0f;
#pragma unroll 2
  for (int t = 0; t < Shape::kTeams; ++t, sums += Shape::kTeam * Shape::kWarpSums / 4) {
    const float2 by = *reinterpret_cast<const float2*>(&factors.of_team[t][query]);
    int4 below = make_int4(0, 0, 0, 0);
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      const int4 sum = sums[f * Shape::kRows8 * 32];
      // Codes of 2 bits carry those below them (unpack.cuh).
      x[0][f] = fmaf(by.x, static_cast<float>(sum.x - below.x), x[0][f]);
      x[1][f] = fmaf(by.y, static_cast<float>(sum.y - below.y), x[1][f]);
      x[0][4 + f] = fmaf(by.x, static_cast<float>(sum.z - below.z), x[0][4 + f]);
      x[1][4 + f] = fmaf(by.y, static_cast<float>(sum.w - below.w), x[1][4 + f]);
      if (width == 2) below = sum;
    }
  }
  const float middle = 0.5f * static_cast<float>((1 << width) - 1);
  const float off[2] = {middle * factors.rounded[query], middle * factors.rounded[query + 1]};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int f = 0; f < 4; ++f) {
      const float unit = __int_as_float((127 - sum_shift(width, i, f)) << 23);
      x[0][4 * i + f] = fmaf(x[0][4 * i + f], unit, -off[0]);
      x[1][4 * i + f] = fmaf(x[1][4 * i + f], unit, -off[1]);
    }
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attend_bands_kernel(const __grid_constant__ AttendCall call) {
  constexpr int kRows8 = Shape::kRows8, kRows = Shape::kRows, kTeam = Shape::kTeam;
  static_assert(kTeam > 1);
  extern __shared__ __align__(128) char shared[];
  ask_for_parameters(call);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
  const int team = warp / kTeam, rank = warp % kTeam;
  const int part_index = blockIdx.x, group = blockIdx.y;
  cudaTriggerProgrammaticLaunchCompletion();  // what merges the parts waits itself
  if (part_index >= call.plan().total_parts) return;  // a spare block of a recorded step
  const AttendPart<Shape> part(call, part_index);
  const AttendItem& item = call.plan().items[part.item];
  const AttendMemory<Shape> memory(call);
  const int tile_bytes = call.tile_bytes[group];
  auto* const unit_words = reinterpret_cast<std::uint32_t*>(shared + memory.units);
  const TeamMaxima<Shape> maxima{reinterpret_cast<float*>(shared + memory.maxima), team, rank};
  const int begin = part.cut(part.first_share + team), end = part.cut(part.first_share + team + 1);
  const std::uint32_t shared_at = shared_address(shared);
  TeamCopies<Shape> copies(call, item, group, memory, shared_at, team, begin, end);
  const bool asks = rank == 0 && lane == 0, asks_queries = rank == 1 && lane == 0;
  if (asks) copies.look_up();

  // Barriers, the mean's table, which has the last of them, and the units.
  constexpr int kBarriers = AttendMemory<Shape>::kBarriers;
  const std::uint32_t table_opens = shared_at + static_cast<unsigned>(memory.barriers + 8 * (kBarriers - 1));
  if (threadIdx.x == Shape::kThreads - 1) {
    auto* const all = reinterpret_cast<std::uint64_t*>(shared + memory.barriers);
#pragma unroll 1
    for (int i = 0; i < kBarriers; ++i) make_barrier(all + i);
    publish_barriers();
    const auto bytes = static_cast<std::uint32_t>(call.mean_terms * kMeanBlock * 2);
    expect_bytes(table_opens, bytes);
    copy_bulk(shared_at + static_cast<unsigned>(memory.mean_table), call.mean_table, bytes, table_opens);
  }
  if (threadIdx.x < kMaxUnits) {
    unit_words[threadIdx.x] = __ldg(call.unit_table + group * kMaxUnits + threadIdx.x);
  }
  __syncthreads();
  const std::uint32_t first_slot = held(copies.slots), first_barrier = held(copies.barriers);
  if (asks) {
#pragma unroll 1
    for (int i = 0; i < min(end - begin, Shape::kStages); ++i) {
      copies.ask_codes(begin + i, first_slot + static_cast<unsigned>(i * memory.slot_bytes),
                       first_barrier + 8u * static_cast<unsigned>(i));
    }
  }
  const int units = __ldg(call.group_units + group);
  cudaGridDependencySynchronize();  // moved and folded queries are there
  wait_barrier(table_opens, 0);
  int anchor = begin * kTeam * kTileTokens / call.anchor;
  if (Shape::kCopyQueries && asks && begin < end) {  // the first ones, since the other thread asks for folded ones
    copies.asked_anchor = anchor;
    copies.ask_moved(anchor + 1);
  }
  if (asks_queries && begin < end) {
    copies.asked_anchor = anchor + 2;  // by the other
#pragma unroll 1
    for (int i = 0; i < Shape::kFoldSlots; ++i) {
      if (copies.next_fold < min(end, begin + Shape::kStages)) copies.ask_folded();
    }
  }

  ChunkSums<Shape> acc[Shape::kChunks] = {};
  RunningSoftmax<kRows8> state;
  const UnpackLane unpack(lane);
  std::uint32_t own_chunks[Shape::kChunks];
#pragma unroll
  for (int k = 0; k < Shape::kChunks; ++k) {
    const int chunk = group * kMaxChunks + Shape::chunk_of(rank, k);
    const bool there = !Shape::kBlocks && Shape::chunk_of(rank, k) < call.chunks;
    own_chunks[k] = there ? held(static_cast<std::uint32_t>(__ldg(call.chunk_widths + chunk)) << 24 |
                                 4 * static_cast<std::uint32_t>(__ldg(call.chunk_offsets + chunk)))
                          : 0;
  }
  const Range coded = item.coded;
  constexpr int kMeanTiles = kMeanBlock / kTileTokens, kStepTokens = kTeam * kTileTokens;
  QueryScales<kRows8> scales;
  MovedQueries<Shape> moved;
  const int first_anchor = anchor;
  int raises = 0;
  // Where things are: of the lane, held rather than worked out at every step, since what a step takes is
  // instructions. Those of rings count from the slot at hand.
  const std::uint64_t shifts = pair_shifts<Shape>(unit_words);
  const std::uint32_t first_moved = held(copies.moved_slots);
  const std::uint32_t rank_bytes = held(static_cast<unsigned>(rank * tile_bytes));
  const std::uint32_t gain_bytes = held(static_cast<unsigned>((rank + 1) * tile_bytes - kTileTail + 4 * g));
  const std::uint32_t moved_lane = held(static_cast<unsigned>(64 * g + 16 * c));
  const std::uint32_t fold_at =
      copies.folded_slots + static_cast<unsigned>(rank * kTileTokens / kMeanBlock * call.folded_bytes());
  const std::uint32_t fold_lane = held(fold_at + static_cast<unsigned>(8 * lane));
  const std::uint32_t fold_constants = held(fold_at + static_cast<unsigned>(call.folded_operands() + 8 * c));
  const std::uint32_t mean_upper = static_cast<unsigned>(call.mean_terms * 32);
  const std::uint32_t table = held(shared_at + static_cast<unsigned>(16 * lane) + rank % kMeanTiles * 2 * mean_upper);
  const std::uint32_t team_weights = shared_at + memory.weights + team * 2 * Shape::kWeightBytes;
  const std::uint32_t write_weights =
      held(team_weights + static_cast<unsigned>((2 * c * Shape::kWeightStride + 8 * rank + g) * 4));
  const std::uint32_t read_weights = held(team_weights + static_cast<unsigned>((g * Shape::kWeightStride + c) * 4));
  // Tiles that are seen as a whole, by their first token; none where scores are capped.
  const unsigned wholes =
      held(call.soft_cap > 0.0f ? 0 : static_cast<unsigned>(max(0, coded.size() - kTileTokens + 1)));
  // Steps at which codes are asked for, from the second on, and the next at which queries are.
  const unsigned code_asks = asks ? static_cast<unsigned>(max(0, end - Shape::kStages - begin)) : 0;
  const auto fold_step = [&] {
    const bool more = asks_queries && copies.next_fold < end;
    return more ? copies.next_fold - (Shape::kFoldSlots - 1) * Shape::kFoldSteps : INT_MAX;
  };
  int next_fold = fold_step(), token = (begin * kTeam + rank) * kTileTokens, next_anchor = 0;
  std::uint32_t tiles = first_slot, barrier = first_barrier, parity = 0;
  std::uint32_t spread = static_cast<std::uint32_t>(token / 4 + g) * kGoldenRatio;
  if (begin == end) maxima.share_nothing(g, c);

#pragma unroll 1
  for (int step = begin; step < end; ++step) {
    if (token >= next_anchor) {
      anchor = token / call.anchor;
      next_anchor = (anchor + 1) * call.anchor;
      const int of_scales = call.moved_coefficients() + 16 * c;
      if constexpr (Shape::kCopyQueries) {
        wait_barrier(first_barrier + 8u * static_cast<unsigned>(Shape::kStages + anchor % 2),
                     static_cast<std::uint32_t>(anchor - first_anchor) >> 1 & 1u);
        const std::uint32_t from =
            first_moved + static_cast<unsigned>(anchor % 2 * memory.moved_bytes);
        moved.copied = held(from + moved_lane);
        scales.load([&](int at) { return load_shared4(from + static_cast<unsigned>(of_scales + at)); });
      } else {
        const std::byte* const from = copies.moved_of(anchor);
        moved.there = from + moved_lane;
        scales.load([&](int at) { return *reinterpret_cast<const uint4*>(from + of_scales + at); });
      }
    }
    wait_barrier(barrier, parity);
    ScoreSums<Shape> sums;
    score_tile<Shape>(call.chunks, units, unit_words, shifts, tiles + rank_bytes, moved, unpack,
                      sums);
    const TokenGains gains(load_shared(tiles + gain_bytes));
    float v[kRows8][2][4];
    const auto number = static_cast<unsigned>(step);
    const std::uint32_t fold =
        number / Shape::kFoldSteps % Shape::kFoldSlots * static_cast<unsigned>(memory.fold_bytes);
    // Of the tiles that share a block of the mean the step's are the first ones or not.
    const std::uint32_t turn =
        kTeam < kMeanTiles ? number % Shape::kFoldSteps * (2 * kTeam * mean_upper) : 0;
    finish_scores<Shape>(call, scales, state, {fold_lane + fold, fold_constants + fold, table + turn, mean_upper},
                         gains, sums, v);
    if (static_cast<unsigned>(token - coded.first) >= wholes) {
      cap_and_mask<Shape>(call.soft_cap, seen_tokens(coded, token / kTileTokens), g, state, v);
    }
    const std::uint32_t half = number % 2 * Shape::kWeightBytes;
    float added[kRows8][2];
    std::uint32_t rounded[kRows8][2];
    int raised = 0;
#pragma unroll 1
    while (true) {
      const bool over = weigh<Shape>(v, gains, spread, added, rounded, write_weights + half);
      const bool first = step == begin && raised == 0;
      if (!any_of_team<kTeam>(team, (over && raised < kMostRaises) || first)) break;
      ++raised;
      maxima.raise(first, raises, g, c, gains, v, state, acc);
      ++raises;
    }
#pragma unroll
    for (int n = 0; n < kRows8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        state.weights[n][e] += added[n][e];
        state.rounded[n][e] = __dp4a(rounded[n][e], 0x01010101u, state.rounded[n][e]);
      }
    }
    // All of the team are done with the step before: its slot can be filled again, and those of the queries
    // before these.
    if (static_cast<unsigned>(step - begin - 1) < code_asks) {
      const bool wraps = tiles == first_slot;
      constexpr unsigned kLast = Shape::kStages - 1;
      copies.ask_codes(step + Shape::kStages - 1, wraps ? tiles + kLast * memory.slot_bytes : tiles - memory.slot_bytes,
                       wraps ? barrier + 8 * kLast : barrier - 8);
    }
    if (step >= next_fold) {
      copies.ask_folded();
      if (Shape::kCopyQueries) copies.ask_moved(anchor + 1);
      next_fold = fold_step();
    }
    add_step<Shape>(read_weights + half, tiles, tile_bytes, rank, own_chunks, unpack, acc);
    token += kStepTokens;
    spread += static_cast<std::uint32_t>(kStepTokens / 4) * kGoldenRatio;
    tiles += memory.slot_bytes, barrier += 8;
    if (barrier == first_barrier + 8 * Shape::kStages) tiles = first_slot, barrier = first_barrier, parity ^= 1u;
  }

  // What merging reads next: each block asks for a share of it.
  if (threadIdx.x == 0) {
    const std::int64_t bytes = static_cast<std::int64_t>(call.group_heads) * call.value_dim *
                               call.chunks * kChunkPlaces * 2;
    const std::int64_t share = (bytes / call.plan().total_parts + 255) / 256 * 256;
    ask_early(reinterpret_cast<const char*>(call.value_basis) + group * bytes + part_index * share,
              min(share, bytes - part_index * share));
  }

  // Few instructions, since they run once: sums go to shared memory as they are.
  float2* const states = reinterpret_cast<float2*>(shared + memory.states);
  float* const rounded_sums = reinterpret_cast<float*>(shared + memory.rounded);
  static_assert(sizeof(TeamFactors<Shape>) <= sizeof(float) * 3 * Shape::kWarps * kRows);
  auto& factors = *reinterpret_cast<TeamFactors<Shape>*>(shared + memory.maxima);
  leave_state<Shape>(state, begin < end, warp, g, c, states, rounded_sums);
  __syncthreads();
  int4* const sums = reinterpret_cast<int4*>(shared + memory.rings);
#pragma unroll
  for (int k = 0; k < Shape::kChunks; ++k) {
#pragma unroll
    for (int f = 0; f < 4; ++f) {
#pragma unroll
      for (int n = 0; n < kRows8; ++n) {
        sums[(((warp * Shape::kChunks + k) * 4 + f) * kRows8 + n) * 32 + lane] =
            make_int4(acc[k][f][n][0], acc[k][f][n][1], acc[k][f][n][2], acc[k][f][n][3]);
      }
    }
    if (team == 0 && lane == 0) {
      factors.width[Shape::chunk_of(rank, k)] = Shape::kUniform2 ? 2 : static_cast<int>(own_chunks[k] >> 24);
    }
  }
  const std::int64_t at = static_cast<std::int64_t>(group) * call.plan().total_parts + part_index;
  if (threadIdx.x < kRows) {
    call.part_states[at * kRows + threadIdx.x] = factors.merge(states, rounded_sums, threadIdx.x);
  }
  __syncthreads();
  // Means of levels times gains: f16 holds them to 2^-11, far below what their roundings leave open.
  const int places = call.chunks * kChunkPlaces;
  const int queries = call.group_heads * (call.query_heads / call.kv_heads);
#pragma unroll 1
  for (int i = warp; i < call.chunks * kRows8; i += Shape::kWarps) {
    const int chunk = i / kRows8, n = i % kRows8, query = 8 * n + 2 * c;
    const int of = Shape::rank_of(chunk) * Shape::kChunks + Shape::own_of(chunk);
    float x[2][8];
    mean_levels<Shape>(factors, sums + (of * 4 * kRows8 + n) * 32 + lane, factors.width[chunk], query, x);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (query + e >= queries) continue;  // padding
      const __half2 both[4] = {__floats2half2_rn(x[e][0], x[e][1]), __floats2half2_rn(x[e][2], x[e][3]),
                               __floats2half2_rn(x[e][4], x[e][5]), __floats2half2_rn(x[e][6], x[e][7])};
      *reinterpret_cast<uint4*>(call.part_means + (at * kRows + query + e) * places + chunk * kChunkPlaces +
                                8 * g) = *reinterpret_cast<const uint4*>(both);
    }
  }
}

}  // namespace kvspan::cuda
