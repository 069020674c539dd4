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
    growth.sink = options.sink_waits ? 0 : options.sink;
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
    : layer_(&layer),
      options_(options),
      rows_(SegmentList(GroupShape{options.heads, layer.key_dim, layer.value_dim, options.ends},
                        std::move(ledger), growth_of(layer, options))) {}

Group::Group(const Group& other)
    : layer_(other.layer_),
      options_(other.options_),
      extent_(other.extent_),
      rows_(other.rows_),
      scores_(other.scores_) {
  for (const auto& store : other.added_) add_store(store->clone());
}

std::int32_t Group::sink_end() const noexcept {
  return next_tile(extent_.first + options_.sink);
}

std::int32_t Group::next_tile(std::int32_t position) const noexcept {
  return (position + options_.tile - 1) / options_.tile * options_.tile;
}

std::int32_t Group::waits_from() const noexcept {
  return options_.sink_waits ? extent_.first : sink_end();
}

void Group::appended(std::span<const std::int32_t> positions) noexcept {
  if (positions.empty()) return;
  if (extent_.empty()) {
    extent_.first = positions.front();
    extent_.encoded_end = sink_end();
    extent_.settled_end = waits_from();
  }
  extent_.next = positions.back() + 1;
}

void Group::move_out(std::int32_t first, std::span<const std::uint8_t> escape) {
  const std::int32_t end =
      list().position(first + static_cast<std::int32_t>(escape.size()) - 1) + 1;
  take_out(first, escape);
  encoded_before(end);
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
  each_store([&](const TokenStore& store) { store.read(first, end, rows); });
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
  extent_.settled_end = rows.positions[first + n - 1] + 1;
  return {};
}

void Group::select(std::int32_t first, std::span<const std::uint8_t> keep) {
  if (std::find(keep.begin(), keep.end(), std::uint8_t{0}) == keep.end()) return;
  take_out(first, keep);
  evicted_before(extent_.next);
}

void Group::take_out(std::int32_t first, std::span<const std::uint8_t> keep) {
  list().select(first, keep);
  if (options_.scores) scores_.select(first, keep);
}

void Group::become(Group& copy) noexcept {
  copy.led_ = std::move(led_);
  *this = std::move(copy);
}

void Group::receive(std::span<const float> weights) {
  KVSPAN_EXPECT(options_.scores && static_cast<std::int32_t>(weights.size()) == list().tokens(),
                "one weight for each token, where scores are kept");
  scores_.add(weights, list().ledger());
}

void Group::settle_as_they_are(std::int32_t position) noexcept {
  extent_.settled_end = std::max(extent_.settled_end, position);
}

void Group::evicted_before(std::int32_t position) noexcept {
  extent_.evicted_end = std::max(extent_.evicted_end, position);
}

void Group::encoded_before(std::int32_t position) noexcept {
  extent_.encoded_end = std::max(extent_.encoded_end, position);
  extent_.settled_end = std::max(extent_.settled_end, position);
}

std::int32_t Group::forget_before(std::int32_t position) {
  const std::int32_t held = list().tokens();
  const auto forgot = [&](std::int32_t end) { evicted_before(first_query_past(*layer_, end)); };
  // The rows come last: once they have forgotten tokens, nothing can fail.
  for (std::size_t i = added_.size(); i-- > 0;) forgot(added_[i]->forget_before(position));
  // Of stores that follow each other, the first ones go whole; where the last has tokens, nothing
  // is added to the others.
  while (added_.size() > 1 && !added_[1]->empty() && added_[0]->next_position() <= position) {
    forgot(added_[0]->next_position());
    added_.erase(added_.begin());
  }
  forgot(rows_.forget_before(position));
  const std::int32_t gone = held - list().tokens();
  if (gone > 0 && options_.scores) scores_.drop_first(gone);
  return gone;
}

std::int32_t Group::cut_at(std::int32_t position) const noexcept {
  each_store([&](const TokenStore& store) { position = store.cut_at(position); });
  return position;
}

void Group::truncate(std::int32_t position) noexcept {
  if (position >= extent_.next) return;
  rows_.truncate(position);
  for (const auto& store : added_) store->truncate(position);
  // Rows to come go to the last store of those that follow each other.
  while (options_.load_store && added_.size() > 1 && added_.back()->empty()) added_.pop_back();
  scores_.truncate(list().tokens());
  extent_.next = position;
  if (position <= extent_.first) {
    extent_.first = extent_.encoded_end = extent_.settled_end = position;
  } else {
    // If windows have taken the tile of `position`, the next one begins the next tile, and rows until then stay.
    const std::int32_t encoded = extent_.encoded_end;
    extent_.encoded_end = std::max(encoded > position ? next_tile(position) : encoded, sink_end());
    extent_.settled_end = std::max(std::min(extent_.settled_end, position), waits_from());
    if (extent_.encoded_end > sink_end()) settle_as_they_are(extent_.encoded_end);
  }
}

// Escapes that windows have passed are not held any more, but a tile is encoded whole.
void Group::add_lost(std::int32_t first, std::int32_t end, RowBlock& to) const {
  RowBlock lost = blank(0);
  each_store([&](const TokenStore& store) { store.read_escaped(first, end, lost); });
  const std::vector<std::int32_t> held = to.positions;
  for (std::size_t i = 0; i < lost.size(); ++i) {
    if (std::binary_search(held.begin(), held.end(), lost.positions[i])) continue;
    to.grow(1);
    to.positions.back() = lost.positions[i];
    const KvRows row = lost.rows(i, 1);
    std::copy_n(row.keys.row(0, 0), to.key_width(), to.keys.end() - static_cast<std::ptrdiff_t>(to.key_width()));
    std::copy_n(row.values.row(0, 0), to.value_width(), to.values.end() - static_cast<std::ptrdiff_t>(to.value_width()));
  }
  to.sort();
}

Group Group::truncated(std::int32_t position) const {
  const std::int32_t cut = cut_at(position);
  RowBlock rows = read_positions(cut, position);
  add_lost(cut, position, rows);
  if (options_.ends == Element::kF16) {
    for (std::vector<float>* side : {&rows.keys, &rows.values}) {
      for (float& x : *side) x = std::clamp(x, -kLargestHalf, kLargestHalf);
    }
  }
  Group out = *this;
  out.truncate(cut);
  const std::int32_t first = out.list().tokens();
  out.list().extend(rows.positions);
  out.appended(rows.positions);
  const KvRows view = rows.rows(0, rows.size());
  for (std::int32_t h = 0; h < options_.heads; ++h) {
    out.list().write(first, view.keys, view.values, h, 0, static_cast<std::int32_t>(rows.size()));
  }
  return out;
}

}  // namespace kvspan
