// SPDX-License-Identifier: Apache-2.0
// The cache of one group of KV heads of one layer, as a method works on it. Rows enter a list, at full rank:
//
//     index 0 ..        sink: the first tokens, full rank for good
//     .. settled()      what the method has dealt with: coded segments
//     .. tokens()       waiting: full-rank rows, the newest of which stay (`recent`)
//
// A method takes the oldest waiting rows, makes codes for them and puts the coded segment in their
// place, or moves them to a store of its own. How far it has come is in the extent (method/extent.h). Not safe for several threads; groups are independent of each other, unless the same heads of neighbouring layers
// are coded together: then the group of the last layer leads, and its policy deals with the rows of all of them, which
// so wait and settle alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "attention/segments/segment_store.h"
#include "attention/token_store.h"
#include "base/fail.h"
#include "cache/rows/encode_rows.h"
#include "cache/rows/row_block.h"
#include "cache/segments/segment_list.h"
#include "cache/state_stream.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"
#include "method/extent.h"
#include "method/selectors/token_scores.h"

namespace kvspan {

// Which heads a group has, and how it keeps its full-rank ends.
struct GroupOptions {
  std::int32_t first_head = 0;
  std::int32_t heads = 1;
  Element ends = Element::kF16;
  std::int32_t sink = 0;
  bool sink_waits = false;  // sink rows wait too, until the policy holds them at 8 bits
  // Tokens that a store of the method's holds together, from a multiple of it on; then the sink ends at one, and positions
  // have no gaps.
  std::int32_t tile = 1;
  bool moves = true;       // rows leave the full-rank ends again
  bool residuals = false;  // kept for certificates
  bool scores = false;     // of received attention, kept per token
  bool follows = false;    // the group of a later layer deals with its rows
  // Reads back a store that the method added on its way; null: it adds none, or those that it
  // begins with are all.
  std::function<Result<std::unique_ptr<TokenStore>>(const StateReader&)> load_store = nullptr;
};

class Group {
 public:
  Group(const LayerShape& layer, const GroupOptions& options, std::shared_ptr<Ledger> ledger);
  // A fork: memory is shared until one of the two writes to it.
  Group(const Group& other);
  Group(Group&&) noexcept = default;
  Group& operator=(Group&&) noexcept = default;

  const LayerShape& layer() const noexcept { return *layer_; }
  const GroupOptions& options() const noexcept { return options_; }
  const Extent& extent() const noexcept { return extent_; }
  // Where rows enter and wait, and where most methods leave them.
  SegmentStore& rows() noexcept { return rows_; }
  const SegmentStore& rows() const noexcept { return rows_; }
  SegmentList& list() noexcept { return rows_.list(); }
  const SegmentList& list() const noexcept { return rows_.list(); }
  // Those that the method added, perhaps still without tokens, in their order.
  std::span<const std::unique_ptr<TokenStore>> added() const noexcept { return added_; }
  void add_store(std::unique_ptr<TokenStore> store) { added_.push_back(std::move(store)); }
  // use(store) for the rows and then for each of those.
  template <class Use>
  void each_store(const Use& use) const {
    use(static_cast<const TokenStore&>(rows_));
    for (const auto& store : added_) use(static_cast<const TokenStore&>(*store));
  }

  // The groups of earlier layers whose tokens are coded with this one's, in the layers' order; they stay where they are. A copy
  // leads none.
  std::span<Group* const> led() const noexcept { return led_; }
  void lead(std::vector<Group*> earlier) noexcept { led_ = std::move(earlier); }

  // One beyond the last position of the sink, whose tokens have come or not.
  std::int32_t sink_end() const noexcept;
  // Tokens of the list that belong to the sink.
  std::int32_t sink() const noexcept { return list().index_of(sink_end()); }
  // Index of the oldest waiting row.
  std::int32_t settled() const noexcept { return list().index_of(extent_.settled_end); }
  std::int32_t waiting() const noexcept { return list().tokens() - settled(); }

  // Rows at these positions, beyond those before, have been added to the list.
  void appended(std::span<const std::int32_t> positions) noexcept;
  // Waiting rows first .. first + n - 1, 0 being the oldest.
  RowBlock read(std::int32_t first, std::int32_t n) const;
  // Tokens first .. first + n - 1 of the list; those that are coded already, reconstructed.
  RowBlock read_tokens(std::int32_t first, std::int32_t n) const;
  // Tokens at positions [first, end), wherever they are; those that are coded, reconstructed.
  RowBlock read_positions(std::int32_t first, std::int32_t end) const;
  // The oldest rows, as read, move into a coded segment. Throws std::bad_alloc, and then, as on
  // failure, holds what it held.
  Status code(const RowBlock& rows, std::size_t first, std::size_t n,
              std::span<const std::shared_ptr<const Code>> keys,
              std::span<const std::shared_ptr<const Code>> values);
  // Rows first .. first + n - 1 of the list, the oldest that wait or settled ones before them,
  // leave it, but for those that escape[i] marks. Throws std::bad_alloc, and then holds what it
  // held.
  void move_out(std::int32_t first, std::span<const std::uint8_t> escape);
  // Forgets tokens; keep[i] belongs to token first + i. Throws std::bad_alloc, and then holds what
  // it held.
  void select(std::int32_t first, std::span<const std::uint8_t> keep);
  // Attention that tokens first .. first + n - 1 have received so far, where kept; 0 for those that
  // no query has been observed to look at.
  std::vector<float> received(std::int32_t first, std::size_t n) const;
  // Adds what the last queries gave to the tokens held, [tokens].
  void receive(std::span<const float> weights);
  // All or nothing, for what takes several steps: change(copy) works on a copy, which this group
  // becomes unless that fails or throws.
  template <class Change>
  Status attempt(const Change& change) {
    Group copy = *this;
    KVSPAN_CHECK_OK(change(copy));
    become(copy);
    return {};
  }
  // Takes what a copy of it holds. The list stays in its place: others refer to it.
  void become(Group& copy) noexcept;
  // Waiting rows before `position` count as settled and stay full rank.
  void settle_as_they_are(std::int32_t position) noexcept;

  // Forgets tokens before `position`, which no query sees any more; how many of the list. Throws
  // std::bad_alloc, and then the list holds what it held.
  std::int32_t forget_before(std::int32_t position);
  // Truncation below `position` would miss tokens that are not held.
  void evicted_before(std::int32_t position) noexcept;
  // Tokens up to `position` are encoded in the stores of a group that leads this one, as loading format 3 finds out.
  void encoded_before(std::int32_t position) noexcept;
  // The last position up to `position` from which on all stores can forget tokens.
  std::int32_t cut_at(std::int32_t position) const noexcept;
  // Forgets tokens from such a position on.
  void truncate(std::int32_t position) noexcept;
  // The same from any position on, as a copy: tokens before it that cannot stay where they are
  // wait in the list, to be coded again. Throws std::bad_alloc.
  Group truncated(std::int32_t position) const;
  std::size_t score_bytes() const noexcept { return scores_.bytes(); }

  // The extent, tokens, and scores. load() is for an empty group of the same options; a
  // failure leaves it in some state.
  void save(const StateWriter& to) const;
  Status load(const StateReader& from);

 private:
  RowBlock blank(std::int32_t n) const;
  // The first position that waits before anything is settled.
  std::int32_t waits_from() const noexcept;
  // `position`, or the next at which a tile begins.
  std::int32_t next_tile(std::int32_t position) const noexcept;
  void take_out(std::int32_t first, std::span<const std::uint8_t> keep);
  void add_lost(std::int32_t first, std::int32_t end, RowBlock& to) const;
  Status load_added(const StateReader& from);
  void infer_extent(std::int32_t settled, std::int32_t evicted, std::int32_t next) noexcept;
  Status check_extent(const ByteReader& in) const;

  const LayerShape* layer_;  // outlives the group
  GroupOptions options_;
  Extent extent_;
  SegmentStore rows_;
  std::vector<std::unique_ptr<TokenStore>> added_;
  std::vector<Group*> led_;
  TokenScores scores_;
};

}  // namespace kvspan
