// SPDX-License-Identifier: Apache-2.0
// What a block keeps in shared memory while it moves or folds queries: those of one tile of heads, a KV head
// and up to four of its query heads.
#pragma once

#include "cuda/attend_call.h"

namespace kvspan::cuda {

inline constexpr int kMaxPairs = 128;  // of RoPE

// Steps of 16 numbers of a key, as operands have them.
__host__ __device__ constexpr int key_steps_of(int key_dim) {
  return (key_dim + 15) / 16;
}

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

struct FoldMemory {
  int fold_stride;     // words of a folded row
  int slow;            // AttendCall::mean_slow_table
  int means;           // of the head's keys, by pairs
  int products;        // [queries][pairs]
  int constants;       // [queries]
  int folded, turns, bytes;
  __host__ __device__ FoldMemory(int pairs, int slow_pairs, int mean_terms, int blocks) {
    fold_stride = mean_terms / 2 + 1 - mean_terms / 2 % 2;
    slow = 0;
    means = slow + slow_pairs * 32;
    products = means + pairs * 8;
    constants = products + kTileQueries * pairs * 8;
    folded = (constants + kTileQueries * 4 + 15) / 16 * 16;
    turns = folded + (kTileQueries * blocks * fold_stride * 4 + 15) / 16 * 16;
    bytes = turns + pairs * (blocks + 1) * 8;
  }
  __host__ __device__ explicit FoldMemory(const AttendCall& call)
      : FoldMemory(call.rope_pairs, call.rope_pairs - call.mean_alone, call.mean_terms, fold_tile(call.key_dim)) {}
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
