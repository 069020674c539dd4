// SPDX-License-Identifier: Apache-2.0
// What the kernels of one attention call share: plain numbers and device pointers, passed by value,
// so that a call copies nothing to the device. What differs from step to step, the plan, is apart:
// in a recorded step (cuda/recorded_step.h) kernels read it in device memory.
//
// A call goes through three kernels:
//     prepare   queries turned to each anchor and moved to coefficients; their products with the
//               mean of keys; attention to full-rank rows
//     attend    scores, weights and weighted sums over coded tokens, split over the sequence
//     finish    the parts merged, coefficients back to values
// Scores are in units of log 2 throughout.
#pragma once

#include <cuda_fp16.h>
#include <vector_types.h>

#include <cstddef>
#include <cstdint>

#include "cuda/attend_constants.h"
#include "cuda/bands/bands_tiles.h"
#include "cuda/bands/score_units.h"

namespace kvspan::cuda {

// A unit in one word: bytes from the tile's beginning, kind, whether it refines another, by how much the sum
// so far is shifted before it, by how much the unit's own products after it, and how many units from here on
// are of its kind with no shift between them.
inline constexpr int kMostUnitRun = 15;
inline constexpr std::uint32_t kRefines = 1u << 18;
KVSPAN_HOST_DEVICE constexpr std::uint32_t unit_word(int offset, int kind, int before, int after, int run) {
  return static_cast<std::uint32_t>(offset | kind << 16 | before << 20 | after << 24) |
         static_cast<std::uint32_t>(run) << 28;
}

enum class RowType : std::int32_t { kF32, kF16, kBF16 };

// Rows [tokens, heads, dim] of the caller.
struct RowsPointer {
  const void* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;  // in numbers
  RowType type = RowType::kF32;
};

struct Range {
  std::int32_t first = 0, last = 0;
  KVSPAN_HOST_DEVICE constexpr std::int32_t size() const { return last - first; }
};

// One query position of one sequence.
struct AttendItem {
  // Where pages begin, in kPageUnit. Entries of positions that a window has passed are not read: what they
  // name belongs to others.
  const std::int32_t* code_pages;  // by position / kPageTokens
  const std::int32_t* row_pages;   // by position / kRowPageTokens
  Range coded, before, after;      // positions it sees: coded, and at full rank before and after
  std::int32_t first_anchor = 0, anchors = 0;         // blocks of `anchor` positions that it meets
  std::int32_t first_mean = 0, means = 0;             // blocks of kMeanBlock
  std::int32_t anchors_before = 0, means_before = 0;  // of the items before this one
  std::int32_t parts = 0, row_parts = 0;  // splits of the coded tokens, of the full-rank ones
};

// How a call is cut (cuda/attend_plan.h).
struct AttendPlan {
  std::int32_t item_count = 0;
  std::int32_t total_anchors = 0, total_means = 0, total_parts = 0, total_row_parts = 0;
  // Tiles of move_anchors anchors and of fold_blocks blocks of the mean, several of kFoldTile.
  std::int32_t total_move_tiles = 0, total_fold_tiles = 0, move_anchors = kMoveAnchors, fold_blocks = 1;
  std::int32_t row_warps =
      1;  // that share a part of full-rank rows: one, or a whole block of threads
  // Of the items before each; apart from them, so that a search reads few lines.
  std::int32_t parts_before[kMaxItems] = {}, row_parts_before[kMaxItems] = {};
  std::int32_t move_tiles_before[kMaxItems] = {}, fold_tiles_before[kMaxItems] = {};
  AttendItem items[kMaxItems];
};

// Of one layer. Strides and offsets in bytes unless said otherwise.
struct AttendCall {
  std::int32_t query_heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  float logit_scale = 0.0f, soft_cap = 0.0f;  // as LayerShape has them, cap in units of log 2
  std::int32_t rope_pairs = 0;
  bool neighbours = false;
  float rope_magnitude = 1.0f;
  const float2* turns = nullptr;  // cosine and sine at multiples of kTurnStep: [..][rope_pairs]

  // Its groups of heads that are coded together; all of one shape. None: full rank only.
  std::int32_t groups = 0, group_heads = 0;
  std::int32_t chunks = 0, units = 0, padded_queries = 0;  // of a group, units: at most
  std::int32_t anchor = 0;
  const __half* key_basis = nullptr;       // [KV heads][units * 4] as move_queries.cuh reads it
  const float* key_scales = nullptr;       // [KV heads]
  const float* key_means = nullptr;        // [KV heads][key_dim], turned by half a position back
  const __half* value_basis = nullptr;     // [KV heads * value_dim][chunks * 64]
  const float2* value_scales = nullptr;    // [KV heads * value_dim]: scale of a row, and mean
  const float* steps = nullptr;            // [groups][chunks * 64], 0 at empty places
  const std::uint8_t* chunk_widths = nullptr;   // [groups][kMaxChunks]
  const std::int32_t* chunk_offsets = nullptr;  // [groups][kMaxChunks], words
  const std::int32_t* tile_bytes = nullptr;     // [groups]
  const std::int32_t* group_offsets = nullptr;  // [groups], of a group's tiles in a page
  std::int32_t most_tile_bytes = 0;
  // What scores read (cuda/bands/score_units.h).
  const std::int32_t* group_units = nullptr;    // [groups]
  const std::uint32_t* unit_table = nullptr;    // [groups][kMaxUnits]: unit_word
  const uint4* unit_levels = nullptr;           // [groups][kMaxUnits][4]: bytes with all bits set
  const float* score_scales = nullptr;          // [groups]: what a sum's 1 counts

  // The mean of keys: what queries fold to and what positions make of it (cache/bands/anchored_means.h).
  std::int32_t mean_terms = 0;  // multiple of 16; 0: keys have no mean
  std::int32_t mean_alone = 0, mean_slow = 0;  // pairs
  const float4* fold_polynomials = nullptr;  // of slow pairs: MeanOperands::polynomials
  const uint4* mean_table = nullptr;         // fragments by tile of a mean block

  const std::byte* pages = nullptr;    // all of them, codes and rows
  std::int64_t row_layer_halves = 0;   // before this layer in a page of rows

  RowsPointer queries;
  void* out = nullptr;
  std::int64_t out_token_stride = 0, out_head_stride = 0;
  RowType out_type = RowType::kF32;

  // Working memory.
  // Of each group and anchor: coefficients [units][padded queries][64], then for each of these
  // queries the scale of its scores and what to take off their sums (int).
  std::byte* moved = nullptr;
  // Of each group and block of the mean: operands [n tiles][mean_terms / 16][32 lanes], then for each
  // of the padded queries what all positions add.
  std::byte* folded = nullptr;
  __half* part_means = nullptr;       // [groups][parts][padded queries][chunks * 64], of levels
  float2* part_states = nullptr;      // [groups][parts][padded queries]: maximum, sum of weights
  float* row_sums = nullptr;          // [row parts][query heads][value_dim]
  float2* row_states = nullptr;       // [row parts][query heads]

  const AttendPlan* recorded = nullptr;  // in device memory; null: `own` is the plan
  AttendPlan own;
  KVSPAN_HOST_DEVICE const AttendPlan& plan() const {
    return recorded != nullptr ? *recorded : own;
  }

  // Queries are folded for sixteen at a time, padding included.
  KVSPAN_HOST_DEVICE std::int32_t fold_pairs() const { return (groups * padded_queries / 8 + 1) / 2; }

  // Bytes of what is above, of one anchor and of one block; multiples of 16.
  KVSPAN_HOST_DEVICE std::int32_t moved_coefficients() const { return units * padded_queries * 64; }
  KVSPAN_HOST_DEVICE std::int32_t moved_bytes() const {
    return moved_coefficients() + padded_queries * 8;
  }
  KVSPAN_HOST_DEVICE std::int32_t folded_operands() const { return padded_queries * mean_terms * 2; }
  KVSPAN_HOST_DEVICE std::int32_t folded_bytes() const {
    return folded_operands() + padded_queries * 4;
  }
};

}  // namespace kvspan::cuda
