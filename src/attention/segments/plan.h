// SPDX-License-Identifier: Apache-2.0
// How a call of attend is cut into items: group of KV heads x block of query positions x KV head x
// chunk of tokens.
// The cut depends on shapes alone, never on the number of threads, and partial results merge in the
// order of the chunks; so results are bit-identical for any team.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/kernels/kernels.h"
#include "cache/segments/segment_list.h"
#include "kvspan/cache.h"

namespace kvspan {

// Up to this many query rows of one KV head, an item works in rows form (attention/kernels/kernels.h).
inline constexpr std::int32_t kMaxRowsForm = 8;
// Query rows that a block aims at: keys and values widened once serve all of them.
inline constexpr std::int32_t kBlockRows = 96;
// Tokens whose scores an item holds at a time, in rows form and in panel form.
inline constexpr std::int32_t kRowsTokens = 256;
inline constexpr std::int32_t kPanelTokens = 64;
// A row of their scores in rows form: softening any range within it may pad beyond its end.
inline constexpr std::int32_t kRowsStride = kRowsTokens + kScoreMultiple;
// A chunk has this many tokens, doubled until there are no more than kMaxItems items (few rows) or
// kMaxBlockItems (many): this bounds the memory for partial results.
inline constexpr std::int32_t kChunkTokens = 1024;
// Where some tokens are coded: they take a quarter of the time, and each chunk moves the queries to
// where the coefficients are, and its sums back.
inline constexpr std::int32_t kCodedChunkTokens = 2048;
inline constexpr std::int32_t kMaxItems = 256;
inline constexpr std::int32_t kMaxBlockItems = 64;

// KV heads that share a list: list->shape().heads of them from `first_head` on.
struct HeadGroup {
  std::int32_t first_head = 0;
  const SegmentList* list = nullptr;
};

class TokenStore;  // attention/token_store.h

// The store of some KV heads of a layer, from `first_head` on.
struct StorePart {
  std::int32_t first_head = 0;
  const TokenStore* store = nullptr;
};

// The groups of a layer, wherever they are listed: themselves, or as stores of segments.
class HeadGroups {
 public:
  HeadGroups(std::span<const HeadGroup> groups) : groups_(groups) {}
  HeadGroups(const std::vector<HeadGroup>& groups) : groups_(groups) {}
  // All are SegmentStores.
  HeadGroups(std::span<const StorePart> parts) : parts_(parts) {}
  HeadGroups(const std::vector<StorePart>& parts) : parts_(parts) {}

  std::size_t size() const noexcept { return groups_.size() + parts_.size(); }
  HeadGroup operator[](std::size_t i) const noexcept;

 private:
  std::span<const HeadGroup> groups_;
  std::span<const StorePart> parts_;
};

// A group's part of the plan.
struct GroupPlan {
  std::int32_t first_head = 0;
  std::int32_t heads = 0;
  const SegmentList* list = nullptr;
  IndexRange tokens;             // token indices that any query of the call sees
  std::int32_t first_chunk = 0;  // chunk c covers [c, c + 1) * chunk_tokens
  std::int32_t chunks = 0;       // 0 when nothing is seen
  std::int32_t first_item = 0;   // the group's items are [first_item, next group's first_item)
  std::int32_t first_sum = 0;    // likewise of what chunks merge into: one per block and head

  // Token indices of a chunk.
  IndexRange chunk(std::int32_t index, std::int32_t chunk_tokens) const noexcept;
};

struct AttentionPlan {
  std::int32_t group = 0;           // query heads that share one
  std::int32_t positions = 0;       // query positions of the call
  std::int32_t block_positions = 0;  // of one block
  std::int32_t blocks = 0;
  std::int32_t rows = 0;         // query rows of a full block: block_positions * group
  std::int32_t padded_rows = 0;  // in panel form a multiple of kPanelRows
  std::int32_t key_dim = 0;      // padded
  std::int32_t value_dim = 0;    // padded
  std::int32_t chunk_tokens = 0;
  std::int32_t items = 0;
  bool partial = false;  // whether some block is several chunks, whose states merge
  std::vector<GroupPlan> groups;
  std::size_t coded_work_floats = 0;  // what coded segments need besides (attention/coded/coded_series.h)

  bool rows_form() const noexcept { return rows <= kMaxRowsForm; }
  // Floats of one item's state: max[padded_rows], sum[padded_rows], out[padded_rows][value_dim].
  std::size_t state_floats() const noexcept;
  // Floats for what an item needs while it runs, its state included.
  std::size_t work_floats() const noexcept;
  // Floats for partial states; 0 when each block is a single chunk.
  std::size_t partial_floats() const noexcept;
};

// What of a plan depends on the layer and the number of queries alone.
AttentionPlan plan_shape(const LayerShape& layer, std::int32_t positions) noexcept;
// Items that a plan has at most where chunks are several.
std::int32_t most_items(const AttentionPlan& plan) noexcept;

// The groups are all KV heads of the layer, in order. May throw std::bad_alloc.
AttentionPlan plan_attention(const LayerShape& layer, HeadGroups groups,
                             std::span<const std::int32_t> query_positions);

}  // namespace kvspan
