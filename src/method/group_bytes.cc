// SPDX-License-Identifier: Apache-2.0
// A group as bytes: docs/reference/formats/cache.md.
#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "method/group.h"
#include "method/state_bytes.h"

namespace kvspan {
namespace {

Result<Extent> get_extent(ByteReader& in) {
  Extent extent;
  for (const auto& [field, number] :
       {std::pair("first position", &extent.first), std::pair("encoded up to", &extent.encoded_end),
        std::pair("settled up to", &extent.settled_end), std::pair("next position", &extent.next),
        std::pair("evicted up to", &extent.evicted_end)}) {
    // A sink may end beyond the tokens that have come.
    KVSPAN_TRY(*number, get_between<std::int32_t>(field, 0, kMostTokens + (1 << 25), in));
  }
  return extent;
}

}  // namespace

void Group::save(const StateWriter& to) const {
  for (const std::int32_t position : {extent_.first, extent_.encoded_end, extent_.settled_end, extent_.next,
                                      extent_.evicted_end}) {
    to.out.put(position);
  }
  rows_.save(to);
  scores_.save(to.out);
  if (options_.load_store) to.out.put(static_cast<std::uint32_t>(added_.size()));
  for (const auto& store : added_) store->save(to);
}

Status Group::load(const StateReader& from) {
  ByteReader& in = from.in;
  if (from.version >= 4) {
    KVSPAN_TRY(extent_, get_extent(in));
  }
  KVSPAN_CHECK_OK(rows_.load(from));
  std::int32_t settled = 0, evicted = 0;
  if (from.version < 4) {
    KVSPAN_TRY(settled, get_between<std::int32_t>("settled tokens", 0, list().tokens(), in));
    KVSPAN_TRY(evicted, get_between<std::int32_t>("dropped up to", 0, kMostTokens + 1, in));
  }
  KVSPAN_CHECK_OK(
      scores_.load("attention received", options_.scores ? list().tokens() : 0, in, from.ledger));
  KVSPAN_CHECK_OK(load_added(from));
  if (from.version < 4) infer_extent(settled, evicted, from.next);
  return check_extent(in);
}

Status Group::load_added(const StateReader& from) {
  if (!options_.load_store) {
    for (const auto& store : added_) KVSPAN_CHECK_OK(store->load(from));
    return {};
  }
  KVSPAN_TRY(const auto count, from.in.get<std::uint32_t>("number of stores"));
  for (std::uint32_t i = 0; i < count; ++i) {
    KVSPAN_TRY(std::unique_ptr<TokenStore> store, options_.load_store(from));
    add_store(std::move(store));
  }
  return {};
}

// Format 3 has the number of settled tokens of the list. Its writers inferred the rest from what was held, and took
// sequences of which tokens had been evicted to begin at 0.
void Group::infer_extent(std::int32_t settled, std::int32_t evicted, std::int32_t next) noexcept {
  const bool passes = layer_->window > 0 || layer_->chunk > 0;
  std::int32_t first = next, encoded = 0;
  each_store([&](const TokenStore& store) {
    if (store.empty()) return;
    first = std::min(first, store.first_position());
    if (&store != &rows_) encoded = std::max(encoded, store.next_position());
  });
  if (evicted > 0 && (passes || options_.sink == 0)) first = 0;
  extent_ = {.first = first, .next = next, .evicted_end = evicted};
  if (extent_.empty()) {
    extent_.encoded_end = extent_.settled_end = next;
    return;
  }
  extent_.encoded_end = std::max(encoded, sink_end());
  if (!passes && !options_.sink_waits) {
    settled = std::max(settled, std::min(options_.sink, list().tokens()));
  }
  extent_.settled_end = std::max(waits_from(), encoded);
  if (settled > 0) settle_as_they_are(list().position(settled - 1) + 1);
}

Status Group::check_extent(const ByteReader& in) const {
  const Extent& e = extent_;
  const auto corrupt = [&](const char* what) {
    return fail(ErrorCode::kCorruptData,
                "{}: positions before byte {}: first {}, encoded up to {}, settled up to {}, next {}, evicted up to {}, "
                "rows from {} to {}: {}",
                in.what(), in.offset(), e.first, e.encoded_end, e.settled_end, e.next, e.evicted_end,
                rows_.first_position(), rows_.next_position(), what);
  };
  if (e.first > e.next || e.next > kMostTokens) return corrupt("allowed: first up to next, that up to 2^30");
  if (!rows_.empty() && (rows_.first_position() < e.first || rows_.next_position() > e.next)) {
    return corrupt("allowed: rows between first and next");
  }
  const std::int32_t sink = e.empty() ? e.next : sink_end(), waits = e.empty() ? e.next : waits_from();
  const std::int32_t end = std::max(next_tile(e.next), sink);
  if (e.encoded_end < sink || e.encoded_end > end || next_tile(e.encoded_end) != e.encoded_end ||
      e.settled_end < waits || e.settled_end > end || (e.encoded_end > sink && e.settled_end < e.encoded_end)) {
    return corrupt("allowed: encoded from the end of the sink on, settled from there or from what is encoded on");
  }
  // The groups of a later layer hold what those that follow them have encoded.
  if (options_.follows) return {};
  std::int32_t stored = 0;
  for (const auto& store : added_) {
    if (store->empty()) continue;
    if (store->first_position() < sink || (stored > 0 && store->first_position() != stored)) {
      return corrupt("allowed: stores that follow the sink and each other");
    }
    stored = store->next_position();
  }
  if (stored > 0 ? stored != e.encoded_end : e.encoded_end > sink && e.evicted_end == 0) {
    return corrupt("allowed: stores up to where tokens are encoded");
  }
  return {};
}

}  // namespace kvspan
