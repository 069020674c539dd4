// SPDX-License-Identifier: Apache-2.0
// The cache of one group of KV heads of one layer, as a method works on it:
//
//     index 0 ..        sink: the first tokens, full rank for good
//     .. settled()      what the method has dealt with: coded segments
//     .. tokens()       waiting: full-rank rows, the newest of which stay (`recent`)
//
// A method takes the oldest waiting rows, makes codes for them and puts the coded segment in their
// place. Not safe for several threads; groups are independent of each other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/bands_store.h"
#include "cache/encode_rows.h"
#include "cache/segment_list.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"
#include "linalg/matrix.h"
#include "method/token_scores.h"

namespace kvspan {

struct StateWriter;  // method/state_bytes.h
struct StateReader;

// Tokens that left the list for bands, all under the same codes: keys and values in one store, or
// in two.
struct BandsTokens {
  BandsStore keys;
  std::optional<BandsStore> values;  // none: `keys` holds both

  const BandsStore& value_store() const noexcept { return values ? *values : keys; }
  // The rows of a token as they are stored: key [heads, key_dim] after RoPE, value [heads,
  // value_dim].
  void restore(std::int32_t position, float* key, float* value) const;
};

// What of a group's bands codes is known before anything was learnt: no means, directions or bits.
struct BandsShape {
  BandsParts keys;
  std::optional<BandsParts> values;  // none: `keys` is of both
};

// Which heads a group has, and how it keeps its full-rank ends.
struct GroupOptions {
  std::int32_t first_head = 0;
  std::int32_t heads = 1;
  Element ends = Element::kF16;
  std::int32_t sink = 0;
  bool moves = true;       // rows leave the full-rank ends again
  bool residuals = false;  // kept for certificates
  bool scores = false;     // of received attention, kept per token
  bool bands = false;      // tokens leave the list for bands
  // Codes of bands are learnt from the sequence, and its own; null: they were there before it.
  std::shared_ptr<const BandsShape> learns = nullptr;
};

// Rows read out of the cache as floats, oldest first; keys after RoPE.
struct RowBlock {
  std::int32_t heads = 0, key_dim = 0, value_dim = 0;
  std::vector<float> keys, values;  // [n, heads, dim]
  std::vector<std::int32_t> positions;

  std::size_t size() const noexcept { return positions.size(); }
  std::size_t key_width() const noexcept { return static_cast<std::size_t>(heads * key_dim); }
  std::size_t value_width() const noexcept { return static_cast<std::size_t>(heads * value_dim); }
  KvRows rows(std::size_t first, std::size_t n) const;
  // Rows of one head, [n, dim].
  MatrixView keys_of(std::int32_t head) const;
  MatrixView values_of(std::int32_t head) const;
};

class Group {
 public:
  Group(const LayerShape& layer, const GroupOptions& options, std::shared_ptr<Ledger> ledger);

  const LayerShape& layer() const noexcept { return *layer_; }
  const GroupOptions& options() const noexcept { return options_; }
  SegmentList& list() noexcept { return list_; }
  const SegmentList& list() const noexcept { return list_; }

  // Of bands: given codes have one element, perhaps still without tokens; learnt ones an element
  // for each time something was learnt, positions increasing. Tokens are added to the last.
  std::span<BandsTokens> bands() noexcept { return bands_; }
  std::span<const BandsTokens> bands() const noexcept { return bands_; }
  void add_bands(BandsTokens bands) { bands_.push_back(std::move(bands)); }
  // One beyond the last position that bands hold; 0 where they hold none.
  std::int32_t bands_end() const noexcept;

  // One beyond the last position held, wherever.
  std::int32_t next_position() const noexcept;

  // Index of the oldest waiting row.
  std::int32_t settled() const noexcept;
  std::int32_t waiting() const noexcept { return list_.tokens() - settled(); }
  // Tokens have been dropped because of those before this position: truncation would miss them. 0:
  // none have.
  std::int32_t dropped_at() const noexcept { return dropped_at_; }

  // Waiting rows first .. first + n - 1, 0 being the oldest.
  RowBlock read(std::int32_t first, std::int32_t n) const;
  // Tokens first .. first + n - 1 of the list; those that are coded already, reconstructed.
  RowBlock read_tokens(std::int32_t first, std::int32_t n) const;
  // The oldest rows, as read, move into a coded segment. Throws std::bad_alloc, and then, as on
  // failure, holds what it held.
  Status code(const RowBlock& rows, std::size_t first, std::size_t n,
              std::span<const std::shared_ptr<const Code>> keys,
              std::span<const std::shared_ptr<const Code>> values);
  // Rows first .. first + n - 1 of the list, the oldest that wait or settled ones before them,
  // leave it, but for those that escape[i] marks.
  void move_out(std::int32_t first, std::span<const std::uint8_t> escape);
  // Forgets tokens; keep[i] belongs to token first + i.
  void select(std::int32_t first, std::span<const std::uint8_t> keep);
  // Attention that tokens first .. first + n - 1 have received so far, where kept; 0 for those that
  // no query has been observed to look at.
  std::vector<float> received(std::int32_t first, std::size_t n) const;
  // Adds what the last queries gave to the tokens held, [tokens].
  void receive(std::span<const float> weights);
  // n waiting rows count as settled and stay full rank.
  void settle_as_they_are(std::int32_t n) noexcept;

  // Forgets tokens from `position` on, which is not before bands_end().
  void truncate(std::int32_t position) noexcept;
  // The same before bands_end(), as a copy. Throws std::bad_alloc.
  Group truncated(std::int32_t position) const;
  void clear() noexcept;
  std::size_t score_bytes() const noexcept { return scores_.bytes(); }

  // Tokens, what has been settled, and scores. load() is for an empty group of the same options; a
  // failure leaves it in some state.
  void save(const StateWriter& to) const;
  Status load(const StateReader& from);

 private:
  RowBlock blank(std::int32_t n) const;
  void take_out(std::int32_t first, std::span<const std::uint8_t> keep);

  const LayerShape* layer_;  // outlives the group
  GroupOptions options_;
  SegmentList list_;
  std::vector<BandsTokens> bands_;
  TokenScores scores_;
  std::int32_t settled_ = 0;
  std::int32_t dropped_at_ = 0;
};

}  // namespace kvspan
