// SPDX-License-Identifier: Apache-2.0
// What a block keeps in shared memory while it moves or folds queries: those of one tile of heads, a
// KV head and up to four of its query heads.
#pragma once

#include "cuda/attend_call.h"

namespace kvspan::cuda {

inline constexpr int kTileQueries = 4;
inline constexpr int kMoveRows = kMoveAnchors * kTileQueries;
inline constexpr int kTurnStride = kFoldBlocks + 1;
inline constexpr int kMaxPairs = 128;   // of RoPE

struct PrepareMemory {
  int row_stride, fold_stride;  // bytes of a moved row, words of a folded one
  int queries, longest, most, levels, products, constants, rows, folded, turns, bytes;
  // key_steps: of 32 numbers.
  __host__ __device__ PrepareMemory(int key_steps, int pairs, int mean_terms, int warps) {
    constexpr int kQueries = kTileQueries;
    row_stride = 32 * key_steps + 16;
    fold_stride = mean_terms / 2 + 1 - mean_terms / 2 % 2;
    queries = 0;
    longest = queries + kQueries * 32 * key_steps * 4;
    most = longest + kQueries * 4;
    levels = most + warps * kMoveRows * 4;
    products = levels + warps * kMoveRows * 4;
    constants = products + kQueries * pairs * 8;
    // A block does one or the other.
    rows = folded = (constants + kQueries * 4 + 15) / 16 * 16;
    const int row_bytes = kMoveRows * row_stride;
    const int fold_bytes = kQueries * kFoldBlocks * fold_stride * 4;
    turns = folded + (fold_bytes + 15) / 16 * 16;
    const int turn_bytes = pairs * kTurnStride * 8;
    bytes = row_bytes > turns + turn_bytes - rows ? rows + row_bytes : turns + turn_bytes;
  }
};

// Steps of 32 numbers of a key, as operands have them.
__host__ __device__ constexpr int key_steps_of(int key_dim) {
  return (key_dim + 31) / 32;
}

// The tile of heads at hand, of an item.
struct HeadTile {
  int item, head, query, queries;  // KV head; its first query head, of those of the head
  int group, group_query;          // the group, and the first query of the group's
  __device__ __forceinline__ HeadTile(const AttendCall& call, int own_item, int tile) {
    const int repeats = call.query_heads / call.kv_heads;
    const int tiles = (repeats + kTileQueries - 1) / kTileQueries;
    item = own_item;
    head = tile / tiles;
    query = tile % tiles * kTileQueries;
    queries = min(kTileQueries, repeats - query);
    group = head / call.group_heads;
    group_query = head % call.group_heads * repeats + query;
  }
};

}  // namespace kvspan::cuda
