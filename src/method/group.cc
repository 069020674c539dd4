// SPDX-License-Identifier: Apache-2.0
#include "method/group.h"

#include <algorithm>
#include <utility>

#include "base/expect.h"
#include "base/fail.h"
#include "cache/visible.h"

namespace kvspan {
namespace {

// Small enough that memory returns soon after rows have left; the coding unit is a multiple.
constexpr std::int32_t kTailCapacity = 32;

constexpr float kLargestHalf = 65504.0f;

// Where queries see the last tokens only, segments go whole, so that they are short.
constexpr std::int32_t kWindowCapacity = 64;

SegmentGrowth growth_of(const LayerShape& layer, const GroupOptions& options) {
  SegmentGrowth growth;
  if (options.moves) {
    growth.sink = options.sink;
    growth.least = growth.most = kTailCapacity;
  }
  if (layer.window > 0 || layer.chunk > 0) {
    growth.most = std::min(growth.most, kWindowCapacity);
    growth.joined = kWindowCapacity;
  }
  return growth;
}

}  // namespace

Group::Group(const LayerShape& layer, const GroupOptions& options, std::shared_ptr<Ledger> ledger)
    : layer_(&layer), options_(options) {
  add_store(std::make_unique<SegmentStore>(
      SegmentList(GroupShape{options.heads, layer.key_dim, layer.value_dim, options.ends},
                  std::move(ledger), growth_of(layer, options))));
}

Group::Group(const Group& other)
    : layer_(other.layer_),
      options_(other.options_),
      scores_(other.scores_),
      settled_(other.settled_),
      dropped_at_(other.dropped_at_),
      sink_gone_(other.sink_gone_) {
  for (const auto& store : other.stores_) add_store(store->clone());
}

std::int32_t Group::settled() const noexcept {
  return std::max(settled_, std::min(sink(), list().tokens()));
}

std::int32_t Group::next_position() const noexcept {
  std::int32_t next = 0;
  for (const auto& store : stores_) next = std::max(next, store->next_position());
  return next;
}

void Group::move_out(std::int32_t first, std::span<const std::uint8_t> escape) {
  take_out(first, escape, std::max(settled(), first + static_cast<std::int32_t>(escape.size())));
}

RowBlock Group::read(std::int32_t first, std::int32_t n) const {
  KVSPAN_EXPECT(first >= 0 && n >= 0 && first + n <= waiting(), "rows that wait");
  return read_tokens(settled() + first, n);
}

RowBlock Group::read_tokens(std::int32_t first, std::int32_t n) const {
  RowBlock block = blank(n);
  const auto count = static_cast<std::size_t>(n), h = static_cast<std::size_t>(options_.heads);
  if (n > 0) {
    list().read(first, {block.keys.data(), {count, h, static_cast<std::size_t>(block.key_dim)}},
                {block.values.data(), {count, h, static_cast<std::size_t>(block.value_dim)}},
                block.positions);
  }
  return block;
}

RowBlock Group::read_positions(std::int32_t first, std::int32_t end) const {
  RowBlock rows = blank(0);
  for (const auto& store : stores_) store->read(first, end, rows);
  rows.sort();
  return rows;
}

RowBlock Group::blank(std::int32_t n) const {
  RowBlock block{.heads = options_.heads,
                 .key_dim = layer_->key_dim,
                 .value_dim = layer_->value_dim,
                 .keys = {},
                 .values = {},
                 .positions = std::vector<std::int32_t>(static_cast<std::size_t>(n))};
  block.keys.resize(block.size() * block.key_width());
  block.values.resize(block.size() * block.value_width());
  return block;
}

std::vector<float> Group::received(std::int32_t first, std::size_t n) const {
  const std::span<const float> known = scores_.values();
  std::vector<float> all(n, 0.0f);
  const auto from = static_cast<std::size_t>(first);
  if (from < known.size()) {
    const std::span<const float> part = known.subspan(from, std::min(n, known.size() - from));
    std::copy(part.begin(), part.end(), all.begin());
  }
  return all;
}

Status Group::code(const RowBlock& rows, std::size_t first, std::size_t n,
                   std::span<const std::shared_ptr<const Code>> keys,
                   std::span<const std::shared_ptr<const Code>> values) {
  const std::int32_t at = settled();
  KVSPAN_TRY(Segment segment,
             encode_rows(rows.rows(first, n), list().shape(),
                         {.keys = keys, .values = values, .residuals = options_.residuals},
                         list().ledger()));
  list().replace(at, std::move(segment));
  settled_ = at + static_cast<std::int32_t>(n);
  return {};
}

void Group::select(std::int32_t first, std::span<const std::uint8_t> keep) {
  if (std::find(keep.begin(), keep.end(), std::uint8_t{0}) == keep.end()) return;
  take_out(first, keep, settled());
  dropped_at_ = next_position();
}

void Group::take_out(std::int32_t first, std::span<const std::uint8_t> keep, std::int32_t settled) {
  std::int32_t gone = 0;
  for (std::size_t i = 0; i < keep.size(); ++i) {
    if (keep[i] == 0 && first + static_cast<std::int32_t>(i) < settled) ++gone;
  }
  list().select(first, keep);
  if (options_.scores) scores_.select(first, keep);
  settled_ = settled - gone;
}

void Group::become(Group& copy) noexcept {
  std::swap(list(), copy.list());
  std::swap(stores_.front(), copy.stores_.front());
  copy.led_ = std::move(led_);
  *this = std::move(copy);
}

void Group::receive(std::span<const float> weights) {
  KVSPAN_EXPECT(options_.scores && static_cast<std::int32_t>(weights.size()) == list().tokens(),
                "one weight for each token, where scores are kept");
  scores_.add(weights, list().ledger());
}

void Group::settle_as_they_are(std::int32_t n) noexcept {
  settled_ = settled() + n;
}

std::int32_t Group::forget_before(std::int32_t position, std::int32_t limit) {
  if (limit < list().tokens()) position = std::min(position, list().position(limit));
  const std::int32_t held = list().tokens(), before = settled(), first = sink();
  const auto forgot = [&](std::int32_t end) {
    dropped_at_ = std::max(dropped_at_, first_query_past(*layer_, end));
  };
  // The list comes last: once it has forgotten tokens, nothing can fail.
  for (std::size_t i = stores_.size(); i-- > 0;) forgot(stores_[i]->forget_before(position));
  // Of stores that follow each other, the first ones go whole; where the last has tokens, nothing
  // is added to the others.
  while (stores_.size() > 2 && !stores_[2]->empty() && stores_[1]->next_position() <= position) {
    forgot(stores_[1]->next_position());
    stores_.erase(stores_.begin() + 1);
  }
  const std::int32_t gone = held - list().tokens();
  if (gone > 0) {
    settled_ = std::max(0, before - gone);
    sink_gone_ += std::min(gone, first);
    if (options_.scores) scores_.drop_first(gone);
  }
  return gone;
}

std::int32_t Group::cut_at(std::int32_t position) const noexcept {
  for (const auto& store : stores_) position = store->cut_at(position);
  return position;
}

void Group::truncate(std::int32_t position) noexcept {
  for (const auto& store : stores_) store->truncate(position);
  // Rows to come go to the last store of those that follow each other.
  while (options_.load_store && stores_.size() > 2 && stores_.back()->empty()) stores_.pop_back();
  settled_ = std::min(settled_, list().tokens());
  scores_.truncate(list().tokens());
}

Group Group::truncated(std::int32_t position) const {
  const std::int32_t cut = cut_at(position);
  RowBlock rows = read_positions(cut, position);
  if (options_.ends == Element::kF16) {
    for (std::vector<float>* side : {&rows.keys, &rows.values}) {
      for (float& x : *side) x = std::clamp(x, -kLargestHalf, kLargestHalf);
    }
  }
  Group out = *this;
  out.truncate(cut);
  const std::int32_t first = out.list().tokens();
  out.list().extend(rows.positions);
  const KvRows view = rows.rows(0, rows.size());
  for (std::int32_t h = 0; h < options_.heads; ++h) {
    out.list().write(first, view.keys, view.values, h, 0, static_cast<std::int32_t>(rows.size()));
  }
  return out;
}

}  // namespace kvspan
