// SPDX-License-Identifier: Apache-2.0
#include "method/bands/bands_policy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <utility>

#include "base/expect.h"
#include "base/fail.h"
#include "method/bands/learn_bands.h"
#include "method/policies/unit_policy.h"
#include "method/state_bytes.h"

namespace kvspan {
namespace {

constexpr auto kTile = static_cast<std::int32_t>(CodedTile::kTokens);
// A token stands far out when its coding error is so many times the usual one.
constexpr double kFarOut = 4.0;
constexpr double kOddShare = 0.005;
// Of exact rows: a number, at full rank or held at 8 bits in blocks of 32 that share a scale, and a position.
constexpr double kFullBits = 16.0, kNarrowBits = 8.5, kPositionBits = 32.0;

// The groups that a group leads, and itself.
std::vector<const Group*> layers_of(const Group& group) {
  std::vector<const Group*> layers(group.led().begin(), group.led().end());
  layers.push_back(&group);
  return layers;
}

// Whether the layers before the last have had the same rows appended.
bool all_there(const Group& group) noexcept {
  return std::ranges::all_of(group.led(), [&](const Group* earlier) {
    return earlier->list().tokens() == group.list().tokens();
  });
}

}  // namespace

void BandsPolicy::share_store(const Group& group) const noexcept {
  for (const Group* earlier : group.led()) bands_of(*earlier).back().follow(bands_of(group).back());
}

void BandsPolicy::truncate(const Group& group, std::int32_t position) noexcept {
  const std::int32_t cut = group.cut_at(position);
  for (const BandsTokens& tokens : bands_of(group)) {
    const std::int32_t first = std::max(0, cut - tokens.first_position()) / kTile;
    for (std::int32_t i = first; i < tokens.keys().tiles(); ++i) {
      counts_.escaped -= std::popcount(tokens.keys().escaped(i));
    }
  }
  // Windows may have taken tiles from there on too.
  counts_.escaped = std::clamp<std::int64_t>(counts_.escaped, 0, std::max(0, cut - group.sink_end()));
  if (position <= group.extent().first) kept_first_.clear();
}

// Sink rows that are to be held at 8 bits stay until they are.
std::int32_t BandsPolicy::forgettable(const Group& group) const {
  return std::min(group.extent().encoded_end, group.extent().settled_end);
}

std::vector<std::vector<float>> BandsPolicy::first_values(const Group& group) const {
  std::vector<std::vector<float>> values;
  const std::vector<const Group*> layers = layers_of(group);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    values.emplace_back();
    const Group& layer = *layers[i];
    if (i < kept_first_.size()) {
      const auto* first = kept_first_[i]->as<float>();
      values.back().assign(first, first + value_width(layer));
    } else if (layer.sink() > 0 && layer.list().position(0) == layer.extent().first) {
      RowBlock row = layer.read_tokens(0, 1);
      // What 8 bits will leave of it; if they leave nothing, settle says why.
      if (options_.narrow_ends && layer.settled() == 0 && !round_rows(layer, 0, row)) continue;
      values.back() = std::move(row.values);
    }
  }
  return values;
}

void BandsPolicy::keep_first_values(const Group& group) {
  const LayerShape& layer = group.layer();
  // If no token may escape, none is compared with the first.
  if (!kept_first_.empty() || options_.escape == 0.0 || (layer.window == 0 && layer.chunk == 0)) return;
  std::vector<std::shared_ptr<const Buffer>> kept;
  for (const std::vector<float>& values : first_values(group)) {
    if (values.empty()) return;
    auto buffer = std::make_shared<Buffer>(values.size() * sizeof(float), MemoryKind::kSketches,
                                           group.list().ledger());
    std::copy(values.begin(), values.end(), buffer->as<float>());
    kept.push_back(std::move(buffer));
  }
  kept_first_ = std::move(kept);
}

std::size_t BandsPolicy::sketch_bytes() const noexcept {
  std::size_t sum = 0;
  for (const auto& values : kept_first_) sum += values->bytes();
  return sum;
}

bool BandsPolicy::pays(const CodedTile& tile, std::size_t token, const Group& group,
                       const BitWorth& worth) const noexcept {
  const BandsTokens& bands = bands_of(group).back();
  std::int32_t width = bands.keys().code().width() + (bands.joint() ? 0 : bands.value_store().code().width());
  for (const Group* earlier : group.led()) width += bands_of(*earlier).back().keys().code().width();
  const auto layers = static_cast<double>(1 + group.led().size());
  const double row = layers * kPositionBits + width * (options_.narrow_ends ? kNarrowBits : kFullBits);
  const auto in_bits = [](double error, double bit) { return bit > 0.0 ? error / bit : 0.0; };
  return in_bits(tile.key_error(token), worth.keys) + in_bits(tile.value_error(token), worth.values) > row;
}

template <class Change>
Status BandsPolicy::change_layers(Group& group, const Change& change) const {
  std::vector<Group> changed;
  for (const Group* earlier : group.led()) KVSPAN_CHECK_OK(change(changed.emplace_back(*earlier)));
  KVSPAN_CHECK_OK(change(group));
  for (std::size_t i = 0; i < changed.size(); ++i) group.led()[i]->become(changed[i]);
  share_store(group);
  return {};
}

Status BandsPolicy::append(Group& group, const CodedTile& tile, std::int32_t at, Counts& tally) const {
  BandsTokens& bands = bands_of(group).back();
  const std::int32_t start = group.extent().encoded_end;
  KVSPAN_EXPECT(group.list().position(at) == start && group.list().position(at + kTile - 1) == start + kTile - 1,
                "rows of a tile follow what is coded");
  const double odd_share = std::min(options_.escape, kOddShare);
  std::uint16_t mask = 0;
  std::array<std::uint8_t, CodedTile::kTokens> escape{};
  Counts counts = tally;
  std::int64_t coded = start - group.sink_end();
  for (std::size_t t = 0; t < escape.size(); ++t) {
    const double error = tile.coded_error(t);
    ++coded;
    const auto within = [&](double share) {
      return static_cast<double>(counts.escaped + 1) <= share * static_cast<double>(coded);
    };
    const bool odd =
        tile.like_first(t) || (counts.usual > 0.0 && error > kFarOut * counts.usual);
    if ((odd && within(odd_share)) || (pays(tile, t, group, counts.worth) && within(options_.escape))) {
      escape[t] = 1;
      mask = static_cast<std::uint16_t>(mask | 1u << t);
      ++counts.escaped;
      continue;
    }
    // Where nothing may escape nobody asks for it, and equal tokens are saved as equal bytes.
    if (options_.escape == 0.0) continue;
    counts.usual += (error - counts.usual) / static_cast<double>(std::min<std::int64_t>(coded, 1024));
  }
  try {
    tile.append_to(bands, start, mask);
    KVSPAN_CHECK_OK(change_layers(group, [&](Group& layer) -> Status {
      layer.move_out(at, escape);
      return {};
    }));
  } catch (...) {
    bands.truncate(start);  // no token is in both
    throw;
  }
  tally = counts;
  return {};
}

std::int32_t BandsPolicy::kept_full() const noexcept {
  return options_.narrow_ends ? kTile : options_.recent;
}

std::int32_t BandsPolicy::kept_narrow() const noexcept {
  return options_.narrow_ends ? std::max(0, options_.recent - 1) / kTile * kTile : 0;
}

std::int32_t BandsPolicy::wanted(const Group& group) const noexcept {
  return bands_of(group).empty() ? options_.learn : options_.refresh;
}

Status BandsPolicy::learn_narrow(Group& group, std::int32_t n) {
  const std::int32_t waits = group.settled() - oldest(group);
  const RowBlock rows = group.read_tokens(oldest(group), waits);
  Counts counts = counts_;
  Status coded = group.attempt([&](Group& copy) -> Status {
    const std::shared_ptr<Ledger>& ledger = copy.list().ledger();
    KVSPAN_TRY(const GroupBands learnt, learn_bands(copy.layer(), rows, *options_.design, ledger));
    counts.worth = learnt.worth;
    copy.add_store(std::make_unique<BandsTokens>(learnt, ledger));
    const std::vector<std::vector<float>> first = first_values(copy);
    const CodedTile::LayerRows all[] = {{bands_of(copy).back(), rows, first.back()}};
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); i += CodedTile::kTokens) {
      CodedTile tile(all[0].bands);
      for (std::size_t piece = 0; piece < CodedTile::kPieces; ++piece) {
        tile.encode(all, i + CodedTile::kPiece * piece, piece);
      }
      KVSPAN_CHECK_OK(append(copy, tile, oldest(copy), counts));
    }
    return {};
  });
  if (coded) counts_ = counts;
  return coded;
}

// Tile by tile: the oldest full-rank one becomes an int8 segment, and when enough of those wait,
// the oldest are coded. The order of these steps, and so the segments, does not depend on how the
// rows came.
Status BandsPolicy::settle_narrow(Group& group) {
  if (const std::int32_t missing = group.sink() - group.settled(); missing > 0) {
    if (group.extent().next < group.sink_end()) return {};
    KVSPAN_CHECK_OK(narrow(group, missing));
  }
  for (;;) {
    const std::int32_t first = oldest(group), n = wanted(group);
    if (group.settled() - first >= kept_narrow() + std::max(n, kTile)) {
      KVSPAN_CHECK_OK(n > 0 ? learn_narrow(group, n) : code_tile(group, first));
      continue;
    }
    if (!options_.narrow_ends && n == 0) return settle_wide(group);
    if (group.waiting() < kept_full() + kTile) return {};
    KVSPAN_CHECK_OK(narrow(group, kTile));
  }
}

Status BandsPolicy::narrow(Group& group, std::int32_t n) const {
  const OneCode keys(options_.narrow->keys->start), values(options_.narrow->values->start);
  return change_layers(group, [&](Group& layer) {
    return layer.code(layer.read(0, n), 0, static_cast<std::size_t>(n), keys.span(), values.span());
  });
}

Status BandsPolicy::settle(Group& group) {
  struct Closing {
    BandsPolicy& policy;
    ~Closing() { policy.close_tasks(); }
  } closing{*this};
  if (!all_there(group)) {
    return fail(ErrorCode::kInvalidArgument,
                "bands: layers that are coded together hold different numbers of tokens; allowed: rows of all of them, "
                "then settle of the last");
  }
  if (ahead_.empty()) open_tasks(group);
  if (!bands_of(group).empty()) {
    BandsTokens& bands = bands_of(group).back();
    const auto tiles = static_cast<std::int32_t>(ahead_.size());
    bands.keys().expect(tiles);
    if (bands.values() != nullptr) bands.values()->expect(tiles);
  }
  return options_.narrow ? settle_narrow(group) : settle_wide(group);
}

BandsPolicy::Due BandsPolicy::due(const Group& group) const noexcept {
  if (wanted(group) > 0 || !all_there(group)) return {};
  const auto tiles = [](std::int32_t tokens) { return std::max(0, tokens / kTile); };
  const std::int32_t first = oldest(group);
  if (!options_.narrow_ends) return {first, tiles(group.list().tokens() - first - kept_full())};
  // settle_narrow's steps: the sink, rows that become narrow, and of those the oldest.
  if (group.extent().next < group.sink_end()) return {};
  const std::int32_t settled = std::max(first, group.settled());
  return {first, tiles(settled - first + kTile * tiles(group.list().tokens() - settled - kept_full()) - kept_narrow())};
}

std::int32_t BandsPolicy::tasks(const Group& group) const noexcept {
  return due(group).tiles * static_cast<std::int32_t>(CodedTile::kPieces);
}

void BandsPolicy::open_tasks(const Group& group) {
  close_tasks();
  keep_first_values(group);
  due_ = due(group);
  if (due_.tiles == 0) return;
  first_values_ = first_values(group);
  ahead_position_ = group.list().position(due_.first);
  ahead_.reserve(static_cast<std::size_t>(due_.tiles));
  const BandsTokens& bands = bands_of(group).back();
  for (std::int32_t i = 0; i < due_.tiles; ++i) ahead_.emplace_back(bands);
}

Status BandsPolicy::round_rows(const Group& group, std::int32_t first, RowBlock& rows) const {
  const OneCode keys(options_.narrow->keys->start), values(options_.narrow->values->start);
  const auto from = static_cast<std::size_t>(first), n = rows.size() - from;
  const GroupShape& shape = group.list().shape();
  SegmentList rounded(shape, std::make_shared<Ledger>());
  KVSPAN_TRY(Segment segment, encode_rows(rows.rows(from, n), shape,
                                          {.keys = keys.span(), .values = values.span(), .residuals = false},
                                          rounded.ledger()));
  rounded.append(std::move(segment));
  const auto heads = static_cast<std::size_t>(rows.heads);
  rounded.read(0, {rows.keys.data() + from * rows.key_width(), {n, heads, static_cast<std::size_t>(rows.key_dim)}},
               {rows.values.data() + from * rows.value_width(), {n, heads, static_cast<std::size_t>(rows.value_dim)}},
               std::span(rows.positions).subspan(from));
  return {};
}

Result<std::vector<CodedTile::LayerRows>> BandsPolicy::piece_at(
    const Group& group, std::int32_t first, std::span<const std::vector<float>> first_values) const {
  constexpr auto kPiece = static_cast<std::int32_t>(CodedTile::kPiece);
  const std::vector<const Group*> layers = layers_of(group);
  std::vector<CodedTile::LayerRows> piece;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    piece.push_back({bands_of(*layers[i]).back(), layers[i]->read_tokens(first, kPiece), first_values[i]});
    // Rows that are still at full rank will have been at 8 bits when it is their turn.
    const std::int32_t narrow = std::clamp(group.settled() - first, 0, kPiece);
    if (!options_.narrow_ends || narrow == kPiece) continue;
    KVSPAN_CHECK_OK(round_rows(*layers[i], narrow, piece.back().rows));
  }
  return piece;
}

void BandsPolicy::run_task(const Group& group, std::int32_t task) {
  const auto piece = static_cast<std::size_t>(task) % CodedTile::kPieces;
  AheadTile& at = ahead_[static_cast<std::size_t>(task) / CodedTile::kPieces];
  const std::int32_t first = due_.first + static_cast<std::int32_t>(CodedTile::kPiece) * task;
  const auto rows = piece_at(group, first, first_values_);
  if (!rows) return;  // settle says why
  at.tile.encode(*rows, 0, piece);
  at.done[piece] = true;
}

void BandsPolicy::close_tasks() noexcept {
  // Nothing of a step's own memory stays; `= {}` would keep a vector's.
  ahead_ = std::vector<AheadTile>();
  first_values_ = std::vector<std::vector<float>>();
}

Status BandsPolicy::code_tile(Group& group, std::int32_t at) {
  const BandsTokens& bands = bands_of(group).back();
  const std::int32_t after = group.list().position(at) - ahead_position_;
  const bool ahead = after >= 0 && after % kTile == 0 && std::cmp_less(after / kTile, ahead_.size());
  std::optional<AheadTile> now;
  AheadTile& tile = ahead ? ahead_[static_cast<std::size_t>(after / kTile)] : now.emplace(bands);
  const std::vector<std::vector<float>> now_first = ahead ? std::vector<std::vector<float>>() : first_values(group);
  for (std::size_t piece = 0; piece < CodedTile::kPieces; ++piece) {
    if (tile.done[piece]) continue;
    const auto first = static_cast<std::int32_t>(CodedTile::kPiece * piece);
    KVSPAN_TRY(const auto rows, piece_at(group, at + first, ahead ? first_values_ : now_first));
    tile.tile.encode(rows, 0, piece);
  }
  return append(group, tile.tile, at, counts_);
}

Status BandsPolicy::settle_wide(Group& group) {
  // Learnt codes may find rows that are at 8 bits already: those that a truncation left.
  for (std::int32_t first; group.list().tokens() - (first = oldest(group)) >= kept_full() + kTile;) {
    KVSPAN_CHECK_OK(code_tile(group, first));
  }
  return {};
}

std::string BandsPolicy::code_source(const Group& group) const {
  if (options_.learn == 0) return options_.source;
  const std::int32_t waits = std::max(0, group.settled() - oldest(group));
  const auto bands = bands_of(group);
  if (bands.empty()) {
    return fmt::format("none yet: {} of {} tokens that it is learnt from wait at 8 bits", waits,
                       options_.learn);
  }
  const std::int32_t last = bands.size() > 1 ? options_.refresh : options_.learn;
  return fmt::format("learnt from this text, {} times; the last from {} tokens at {} on",
                     bands.size(), last, bands.back().keys().first_position());
}

}  // namespace kvspan
