// SPDX-License-Identifier: Apache-2.0
#include "method/group.h"

#include <algorithm>
#include <utility>

#include "base/expect.h"
#include "base/fail.h"

namespace kvspan {
namespace {

// Small enough that memory returns soon after rows have left; the coding unit is a multiple.
constexpr std::int32_t kTailCapacity = 32;

constexpr float kLargestHalf = 65504.0f;

SegmentGrowth growth_of(const GroupOptions& options) {
  if (!options.moves) return {};
  return {.sink = options.sink, .least = kTailCapacity, .most = kTailCapacity};
}

TensorView<const float, 3> slice(const std::vector<float>& rows, std::size_t first, std::size_t n,
                                 std::int32_t heads, std::int32_t dim) {
  const auto h = static_cast<std::size_t>(heads), d = static_cast<std::size_t>(dim);
  return {rows.data() + first * h * d, {n, h, d}};
}

}  // namespace

void BandsTokens::restore(std::int32_t position, float* key, float* value) const {
  for (const BandsStore* store : {&keys, values ? &*values : nullptr}) {
    if (store == nullptr) continue;
    std::vector<float> c(static_cast<std::size_t>(store->code().places()));
    store->coefficients(position - store->first_position(), c.data());
    store->code().restore(c.data(), position, key, value);
  }
}

KvRows RowBlock::rows(std::size_t first, std::size_t n) const {
  KvRows view;
  view.keys = slice(keys, first, n, heads, key_dim);
  view.values = slice(values, first, n, heads, value_dim);
  view.positions = std::span(positions).subspan(first, n);
  return view;
}

MatrixView RowBlock::keys_of(std::int32_t head) const {
  const auto d = static_cast<std::size_t>(key_dim);
  return {keys.data() + static_cast<std::size_t>(head) * d,
          {size(), d},
          {static_cast<std::size_t>(heads) * d, 1}};
}

MatrixView RowBlock::values_of(std::int32_t head) const {
  const auto d = static_cast<std::size_t>(value_dim);
  return {values.data() + static_cast<std::size_t>(head) * d,
          {size(), d},
          {static_cast<std::size_t>(heads) * d, 1}};
}

Group::Group(const LayerShape& layer, const GroupOptions& options, std::shared_ptr<Ledger> ledger)
    : layer_(&layer),
      options_(options),
      list_(GroupShape{options.heads, layer.key_dim, layer.value_dim, options.ends},
            std::move(ledger), growth_of(options)) {}

std::int32_t Group::settled() const noexcept {
  return std::max(settled_, std::min(options_.sink, list_.tokens()));
}

std::int32_t Group::next_position() const noexcept {
  return std::max(list_.next_position(), bands_end());
}

std::int32_t Group::bands_end() const noexcept {
  for (std::size_t i = bands_.size(); i-- > 0;) {
    if (!bands_[i].keys.empty()) return bands_[i].keys.next_position();
  }
  return 0;
}

void Group::move_out(std::int32_t first, std::span<const std::uint8_t> escape) {
  settled_ = std::max(settled(), first + static_cast<std::int32_t>(escape.size()));
  take_out(first, escape);
}

RowBlock Group::read(std::int32_t first, std::int32_t n) const {
  KVSPAN_EXPECT(first >= 0 && n >= 0 && first + n <= waiting(), "rows that wait");
  return read_tokens(settled() + first, n);
}

RowBlock Group::read_tokens(std::int32_t first, std::int32_t n) const {
  RowBlock block = blank(n);
  const auto count = static_cast<std::size_t>(n), h = static_cast<std::size_t>(options_.heads);
  if (n > 0) {
    list_.read(first, {block.keys.data(), {count, h, static_cast<std::size_t>(block.key_dim)}},
               {block.values.data(), {count, h, static_cast<std::size_t>(block.value_dim)}},
               block.positions);
  }
  return block;
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
             encode_rows(rows.rows(first, n), list_.shape(),
                         {.keys = keys, .values = values, .residuals = options_.residuals},
                         list_.ledger()));
  list_.replace(at, std::move(segment));
  settled_ = at + static_cast<std::int32_t>(n);
  return {};
}

void Group::select(std::int32_t first, std::span<const std::uint8_t> keep) {
  if (std::find(keep.begin(), keep.end(), std::uint8_t{0}) == keep.end()) return;
  take_out(first, keep);
  dropped_at_ = next_position();
}

void Group::take_out(std::int32_t first, std::span<const std::uint8_t> keep) {
  const std::int32_t before = settled();
  std::int32_t gone = 0;
  for (std::size_t i = 0; i < keep.size(); ++i) {
    if (keep[i] == 0 && first + static_cast<std::int32_t>(i) < before) ++gone;
  }
  list_.select(first, keep);
  if (options_.scores) scores_.select(first, keep);
  settled_ = before - gone;
}

void Group::receive(std::span<const float> weights) {
  KVSPAN_EXPECT(options_.scores && static_cast<std::int32_t>(weights.size()) == list_.tokens(),
                "one weight for each token, where scores are kept");
  scores_.add(weights, list_.ledger());
}

void Group::settle_as_they_are(std::int32_t n) noexcept {
  settled_ = settled() + n;
}

void Group::truncate(std::int32_t position) noexcept {
  list_.truncate(position);
  settled_ = std::min(settled_, list_.tokens());
  scores_.truncate(list_.tokens());
}

// Tiles are taken back whole. What of the last of them stays goes to the end of the list, where
// rows wait to be coded: rebuilt, or as it was where it had escaped.
Group Group::truncated(std::int32_t position) const {
  Group out = *this;
  const std::int32_t edge = position / BandsStore::kTileTokens * BandsStore::kTileTokens;
  const BandsTokens* cut = nullptr;  // the last tokens of bands that stay, perhaps in part
  for (const BandsTokens& bands : bands_) {
    if (!bands.keys.empty() && bands.keys.first_position() <= edge) cut = &bands;
  }
  const std::int32_t from = cut != nullptr ? edge : position;
  RowBlock rows = blank(position - from);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows.positions[i] = from + static_cast<std::int32_t>(i);
    cut->restore(rows.positions[i], rows.keys.data() + i * rows.key_width(),
                 rows.values.data() + i * rows.value_width());
  }
  for (float& x : rows.keys) x = std::clamp(x, -kLargestHalf, kLargestHalf);
  for (float& x : rows.values) x = std::clamp(x, -kLargestHalf, kLargestHalf);
  for (std::int32_t t = list_.tokens(); t-- > 0 && list_.position(t) >= from;) {
    if (list_.position(t) >= position) continue;
    const RowBlock row = read_tokens(t, 1);
    const auto i = static_cast<std::size_t>(row.positions[0] - from);
    std::copy(row.keys.begin(), row.keys.end(),
              rows.keys.begin() + static_cast<std::ptrdiff_t>(i * rows.key_width()));
    std::copy(row.values.begin(), row.values.end(),
              rows.values.begin() + static_cast<std::ptrdiff_t>(i * rows.value_width()));
  }
  const auto keep = [&](BandsStore& store) {
    store.truncate(std::max(0, from - store.first_position()) / BandsStore::kTileTokens);
  };
  for (BandsTokens& bands : out.bands_) {
    keep(bands.keys);
    if (bands.values) keep(*bands.values);
  }
  // Rows to come are coded by the code that follows the tokens held.
  while (out.bands_.size() > 1 && out.bands_.back().keys.empty()) out.bands_.pop_back();
  out.truncate(from);
  out.settled_ = std::min(out.settled_, out.list_.tokens());
  out.list_.extend(rows.positions);
  const KvRows view = rows.rows(0, rows.size());
  for (std::int32_t h = 0; h < options_.heads; ++h) {
    out.list_.write(out.list_.tokens() - static_cast<std::int32_t>(rows.size()), view.keys,
                    view.values, h, 0, static_cast<std::int32_t>(rows.size()));
  }
  return out;
}

void Group::clear() noexcept {
  list_.clear();
  if (options_.learns) bands_.clear();
  for (BandsTokens& bands : bands_) {
    bands.keys.clear();
    if (bands.values) bands.values->clear();
  }
  scores_ = {};
  settled_ = 0;
  dropped_at_ = 0;
}

}  // namespace kvspan
