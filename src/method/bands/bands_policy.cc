// SPDX-License-Identifier: Apache-2.0
#include "method/bands/bands_policy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/fail.h"
#include "cache/bands/bands_residuals.h"
#include "method/bands/learn_bands.h"
#include "method/policies/unit_policy.h"
#include "method/state_bytes.h"

namespace kvspan {
namespace {

constexpr std::size_t kTile = kBandTokens;
// A token stands far out when its coding error is so many times the usual one,
constexpr double kFarOut = 4.0;
// and is like the first when the cosine between their values, of all heads, is above this. Massive
// activations, which a model gives to its first token and to a few others, drown what a token says:
// those few have nearly the first one's values, other tokens nothing of the kind.
constexpr double kLikeFirst = 0.7;

// Codes of a tile under one code, and each token's squared coding error, the weighed one that the
// transform makes Euclidean: |c - c^|^2 over what was kept, and what was not.
struct TileCodes {
  std::vector<std::int8_t> codes, values;  // [16, places]: packed, and what they stand for
  std::array<std::int8_t, kTile> gains{};
  std::array<double, kTile> errors{};
  std::vector<BFloat16> residuals;  // [16, residual_norms], where the store keeps them

  const BFloat16* norms() const { return residuals.empty() ? nullptr : residuals.data(); }
};

TileCodes encode(const BandsStore& store, const RowBlock& rows, std::size_t first) {
  const BandsCode& code = store.code();
  const auto places = static_cast<std::size_t>(code.places());
  TileCodes tile;
  tile.codes.resize(kTile * places);
  tile.values.resize(kTile * places);
  const auto width = static_cast<std::size_t>(code.width());
  std::vector<float> z(kTile * width), c(kTile * places), back(places);
  const KvRows view = rows.rows(first, kTile);
  for (std::size_t t = 0; t < kTile; ++t) {
    code.gather(view.keys.row(t, 0), view.values.row(t, 0), view.positions[t],
                z.data() + t * width);
  }
  code.encode(static_cast<std::int32_t>(kTile), z.data(), tile.codes.data(), tile.gains.data(),
              c.data());
  for (std::size_t t = 0; t < kTile; ++t) {
    code.layout().values(tile.codes.data() + t * places, tile.values.data() + t * places);
    code.decode(tile.values.data() + t * places, tile.gains[t], back.data());
    for (std::size_t i = 0; i < places; ++i) {
      const double off = double{c[t * places + i]} - double{back[i]};
      tile.errors[t] += off * off;
    }
  }
  if (!store.has_residuals()) return tile;
  const auto norms = static_cast<std::size_t>(BandsStore::residual_norms(code));
  tile.residuals.resize(kTile * norms);
  BandsResiduals residuals(code);
  for (std::size_t t = 0; t < kTile; ++t) {
    residuals.measure(view.keys.row(t, 0), view.values.row(t, 0), view.positions[t],
                      tile.values.data() + t * places, tile.gains[t],
                      tile.residuals.data() + t * norms);
  }
  return tile;
}

// Values of the sequence's first token; none where the list does not hold it.
std::vector<float> first_values(const Group& group) {
  if (group.list().tokens() == 0) return {};
  RowBlock row = group.read_tokens(0, 1);
  return row.positions[0] == 0 ? std::move(row.values) : std::vector<float>();
}

double cosine(const float* a, std::span<const float> b) {
  double product = 0.0, square_a = 0.0, square_b = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    product += double{a[i]} * double{b[i]};
    square_a += double{a[i]} * double{a[i]};
    square_b += double{b[i]} * double{b[i]};
  }
  return square_a > 0.0 && square_b > 0.0 ? product / std::sqrt(square_a * square_b) : 0.0;
}

// One beyond the last position that is coded; 0 where none is.
std::int32_t bands_end(const Group& group) {
  std::int32_t end = 0;
  for (const BandsTokens* tokens : bands_of(group)) end = std::max(end, tokens->next_position());
  return end;
}

}  // namespace

std::vector<BandsTokens*> bands_of(const Group& group) {
  std::vector<BandsTokens*> all;
  for (const auto& store : group.stores().subspan(1)) {
    all.push_back(static_cast<BandsTokens*>(store.get()));
  }
  return all;
}

void BandsPolicy::clear() {
  coded_ = escaped_ = 0;
  usual_ = 0.0;
}

void BandsPolicy::truncate(const Group& group) {
  coded_ = escaped_ = 0;
  for (const BandsTokens* tokens : bands_of(group)) {
    coded_ += tokens->keys().tokens();
    for (std::int32_t i = 0; i < tokens->keys().tiles(); ++i) {
      escaped_ += std::popcount(tokens->keys().escaped(i));
    }
  }
}

// Until something is coded, the sink tells where coding begins.
std::int32_t BandsPolicy::forgettable(const Group& group) const {
  return bands_end(group) > 0 ? oldest(group) : 0;
}

Status BandsPolicy::code_tile(Group& group, const RowBlock& rows, std::size_t first,
                              std::int32_t at) {
  BandsTokens& bands = *bands_of(group).back();
  const std::int32_t start = rows.positions[first], end = bands_end(group);
  constexpr auto size = static_cast<std::int32_t>(kTile);
  const std::int32_t next = end > 0 ? end : (start + size - 1) / size * size;
  if (start != next ||
      rows.positions[first + kTile - 1] != start + static_cast<std::int32_t>(kTile) - 1) {
    return fail(
        ErrorCode::kUnsupported,
        "bands codes consecutive positions from a multiple of {}; found {} to {} where {} was "
        "next",
        kTile, start, rows.positions[first + kTile - 1], next);
  }
  const TileCodes keys = encode(bands.keys(), rows, first);
  TileCodes values;
  if (bands.values() != nullptr) values = encode(*bands.values(), rows, first);
  std::uint16_t mask = 0;
  std::array<std::uint8_t, kTile> escape{};
  const std::vector<float> first_token = first_values(group);
  for (std::size_t t = 0; t < kTile; ++t) {
    const double error = keys.errors[t] + values.errors[t];
    ++coded_;
    const bool massive =
        cosine(rows.values.data() + (first + t) * first_token.size(), first_token) > kLikeFirst;
    const bool out =
        (massive || (usual_ > 0.0 && error > kFarOut * usual_)) &&
        static_cast<double>(escaped_ + 1) <= options_.escape * static_cast<double>(coded_);
    if (out) {
      escape[t] = 1;
      mask = static_cast<std::uint16_t>(mask | 1u << t);
      ++escaped_;
      continue;
    }
    usual_ += (error - usual_) / static_cast<double>(std::min<std::int64_t>(coded_, 1024));
  }
  const std::int32_t position = rows.positions[first];
  bands.keys().append(position, keys.codes.data(), keys.gains.data(), mask, keys.norms());
  if (bands.values() != nullptr) {
    bands.values()->append(position, values.codes.data(), values.gains.data(), mask,
                           values.norms());
  }
  group.move_out(at, escape);
  return {};
}

std::int32_t BandsPolicy::oldest(const Group& group) const noexcept {
  // Sink and escaped tokens, none of which is beyond what is coded.
  const std::int32_t end = bands_end(group);
  if (end == 0) return options_.narrow_ends ? options_.sink : group.sink();
  std::int32_t count = 0;
  while (count < group.list().tokens() && group.list().position(count) < end) ++count;
  return count;
}

std::int32_t BandsPolicy::wanted(const Group& group) const noexcept {
  return bands_of(group).empty() ? options_.learn : options_.refresh;
}

Status BandsPolicy::code_narrow(Group& group, std::int32_t n) {
  const std::int32_t waits = group.settled() - oldest(group);
  const RowBlock rows = group.read_tokens(oldest(group), waits);
  if (wanted(group) > 0) {
    const std::shared_ptr<Ledger>& ledger = group.list().ledger();
    KVSPAN_TRY(const BandsCodes learnt, learn_bands(group.layer(), rows, *options_.design, ledger));
    group.add_store(std::make_unique<BandsTokens>(learnt, ledger));
  }
  for (std::int32_t i = 0; i < n; i += static_cast<std::int32_t>(kTile)) {
    KVSPAN_CHECK_OK(code_tile(group, rows, static_cast<std::size_t>(i), oldest(group)));
  }
  return {};
}

// Tile by tile: the oldest full-rank one becomes an int8 segment, and when enough of those wait,
// the oldest are coded. The order of these steps, and so the segments, does not depend on how the
// rows came.
Status BandsPolicy::settle_narrow(Group& group) {
  constexpr auto tile = static_cast<std::int32_t>(kTile);
  const OneCode keys(options_.narrow->keys->start), values(options_.narrow->values->start);
  const auto narrow = [&](std::int32_t n) {
    return group.code(group.read(0, n), 0, static_cast<std::size_t>(n), keys.span(), values.span());
  };
  if (options_.narrow_ends && bands_end(group) == 0 && group.settled() < options_.sink) {
    const std::int32_t missing = options_.sink - group.settled();
    if (group.waiting() < missing) return {};
    KVSPAN_CHECK_OK(narrow(missing));
  }
  // Rows that stay at full rank, and tokens that stay at 8 bits.
  const std::int32_t full = options_.narrow_ends ? tile : options_.recent;
  const std::int32_t kept =
      options_.narrow_ends ? std::max(0, options_.recent - 1) / tile * tile : 0;
  while (group.waiting() >= full + tile) {
    if (!options_.narrow_ends && wanted(group) == 0) {
      // Tiles still at 8 bits: memory ended while their code's first tokens were coded.
      const std::int32_t tiles = (group.settled() - oldest(group)) / tile;
      if (tiles > 0) KVSPAN_CHECK_OK(code_narrow(group, tiles * tile));
      return settle_wide(group);
    }
    KVSPAN_CHECK_OK(narrow(tile));
    const std::int32_t n = std::max(wanted(group), tile);
    if (group.settled() - oldest(group) < kept + n) continue;
    KVSPAN_CHECK_OK(code_narrow(group, n));
  }
  return {};
}

Status BandsPolicy::settle(Group& group) {
  return options_.narrow ? settle_narrow(group) : settle_wide(group);
}

Status BandsPolicy::settle_wide(Group& group) {
  constexpr auto tile = static_cast<std::int32_t>(kTile);
  const std::int32_t tiles = (group.waiting() - options_.recent) / tile;
  if (tiles < 1) return {};
  const RowBlock rows = group.read(0, tiles * tile);
  BandsTokens& bands = *bands_of(group).back();
  bands.keys().expect(tiles);
  if (bands.values() != nullptr) bands.values()->expect(tiles);
  for (std::int32_t i = 0; i < tiles; ++i) {
    KVSPAN_CHECK_OK(code_tile(group, rows, static_cast<std::size_t>(i) * kTile, group.settled()));
  }
  return {};
}

std::string BandsPolicy::code_source(const Group& group) const {
  if (options_.learn == 0) return options_.source;
  const std::int32_t waits = std::max(0, group.settled() - oldest(group));
  const std::vector<BandsTokens*> bands = bands_of(group);
  if (bands.empty()) {
    return fmt::format("none yet: {} of {} tokens that it is learnt from wait at 8 bits", waits,
                       options_.learn);
  }
  const std::int32_t last = bands.size() > 1 ? options_.refresh : options_.learn;
  return fmt::format("learnt from this text, {} times; the last from {} tokens at {} on",
                     bands.size(), last, bands.back()->keys().first_position());
}

Status BandsPolicy::save(const StateWriter& to) const {
  to.out.put(coded_);
  to.out.put(escaped_);
  to.out.put(usual_);
  return {};
}

Status BandsPolicy::load(const Group& group, const StateReader& from) {
  KVSPAN_CHECK_OK(check_segments(group, {.plan = options_.narrow.get()}, from.in));
  KVSPAN_TRY(coded_, get_between<std::int64_t>("tokens coded", 0, kMostTokens, from.in));
  KVSPAN_TRY(escaped_, get_between<std::int64_t>("tokens escaped", 0, coded_, from.in));
  return from.in.get_finite("usual coding error", std::span<double>(&usual_, 1),
                            std::numeric_limits<double>::max());
}

}  // namespace kvspan
