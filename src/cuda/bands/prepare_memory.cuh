// SPDX-License-Identifier: Apache-2.0
// What a block keeps in shared memory while it moves queries, those of one tile of heads, a KV head and up to four of
// its query heads, or folds them, sixteen of all heads.
#pragma once

#include "cuda/attend_call.h"
#include "cuda/bands/key_steps.h"

namespace kvspan::cuda {

inline constexpr int kMaxPairs = 128;  // of RoPE

// `tiles` of 16 rows are moved at once: four queries at each of 4 tiles anchors.
struct MoveMemory {
  int row_stride, product_stride;  // halves; multiples of 8, odd ones, so that no bank is met twice
  int rows, products;
  int full, words;  // of the group's units: AttendCall::unit_levels and unit_table
  int most, levels, longest, bytes;
  __host__ __device__ MoveMemory(int key_steps, int units, int tiles) {
    row_stride = 16 * key_steps + 8;
    product_stride = 64 * units + 8;
    rows = 0;
    products = rows + 16 * tiles * row_stride * 2;
    full = products + 16 * tiles * product_stride * 2;
    words = full + 64 * units;
    most = words + (4 * units + 15) / 16 * 16;
    levels = most + 16 * tiles * 4;
    longest = levels + 16 * tiles * 4;
    bytes = longest + kTileQueries * 4;
  }
};

// Of sixteen queries.
struct FoldMemory {
  // Pairs of a block's turns: of all that a kernel takes, and eight that are nothing.
  __host__ __device__ static constexpr int turn_stride(int key_dim) { return (key_dim <= 128 ? 64 : 128) + 8; }

  int term_stride, slow_steps;
  int turns;  // of each warp: [blocks][pairs, as FoldTurns has them]
  int means;  // of the keys of all heads that queries meet
  int slow;   // products of slow pairs with the mean: [steps][upper halves, lower ones][32 lanes] operands
  int terms;  // of others, [queries][term_stride]: what the cosine and sine of a turn add to each term
  int constants;  // [queries]
  int bytes;
  __host__ __device__ FoldMemory(int alone, int slow_pairs, int key_dim) {
    term_stride = (8 * alone_eights(alone) + 7) / 16 * 16 + 8;  // so that two queries meet all banks
    slow_steps = (slow_pairs + 7) / 8;
    turns = 0;
    means = turns + kFoldTile * turn_stride(key_dim) * 8;
    slow = means + 16 * key_dim * 4;
    terms = slow + slow_steps * 2 * 32 * 16;
    constants = terms + 16 * term_stride * 8;
    bytes = constants + 16 * 4;
  }
  __host__ __device__ explicit FoldMemory(const AttendCall& call)
      : FoldMemory(call.mean_alone, call.mean_slow, call.key_dim) {}
};

// Tiles of heads of an item.
__host__ __device__ inline int head_tiles(int query_heads, int kv_heads) {
  return kv_heads * ((query_heads / kv_heads + kTileQueries - 1) / kTileQueries);
}

// The tile of heads at hand, of an item.
struct HeadTile {
  int item, head, query, queries;  // KV head; its first query head, of those of the head
  int group, group_query;          // the group, and the first query of the group's
  // Places after the tile's queries that the group has no query for, where the tile is the group's last. They are read
  // like others and have to be zeros: not a number would be too large for a weight however often the scale of weights
  // was raised. Coefficients there may be anything, since their scales are zeros.
  int padding;
  std::int64_t first;              // the first query's numbers among those of the call
  __device__ __forceinline__ HeadTile(const AttendCall& call, int own_item, int tile) {
    const int repeats = call.query_heads / call.kv_heads;
    const int tiles = (repeats + kTileQueries - 1) / kTileQueries;
    item = own_item;
    head = tile / tiles;
    query = tile % tiles * kTileQueries;
    queries = min(kTileQueries, repeats - query);
    group = head / call.group_heads;
    group_query = head % call.group_heads * repeats + query;
    const bool last = group_query + queries == call.group_heads * repeats;
    padding = last ? call.padded_queries - group_query - queries : 0;
    first = item * call.queries.token_stride + (head * repeats + query) * call.queries.head_stride;
  }
};

}  // namespace kvspan::cuda
