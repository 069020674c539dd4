// SPDX-License-Identifier: Apache-2.0
#include "method/bands_policy.h"

#include <array>
#include <cmath>
#include <limits>

#include "base/fail.h"
#include "cache/bands_residuals.h"
#include "method/state_bytes.h"
#include "method/unit_policy.h"

namespace kvspan {
namespace {

constexpr std::size_t kTile = kBandTokens;
// A token stands far out when its coding error is so many times the usual one.
constexpr double kFarOut = 4.0;

// Codes of a tile under one code, and each token's squared coding error, the weighed one that the
// transform makes Euclidean: |c - c^|^2 over what was kept, and what was not.
struct TileCodes {
  std::vector<std::int8_t> codes;  // [16, places]
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
  std::vector<float> z(static_cast<std::size_t>(code.width())), c(places), back(places);
  const KvRows view = rows.rows(first, kTile);
  for (std::size_t t = 0; t < kTile; ++t) {
    code.gather(view.keys.row(t, 0), view.values.row(t, 0), view.positions[t], z.data());
    code.encode(z.data(), tile.codes.data() + t * places, &tile.gains[t], c.data());
    code.decode(tile.codes.data() + t * places, tile.gains[t], back.data());
    for (std::size_t i = 0; i < places; ++i) {
      const double off = double{c[i]} - double{back[i]};
      tile.errors[t] += off * off;
    }
  }
  if (!store.has_residuals()) return tile;
  const auto norms = static_cast<std::size_t>(BandsStore::residual_norms(code));
  tile.residuals.resize(kTile * norms);
  BandsResiduals residuals(code);
  for (std::size_t t = 0; t < kTile; ++t) {
    residuals.measure(view.keys.row(t, 0), view.values.row(t, 0), view.positions[t],
                      tile.codes.data() + t * places, tile.gains[t],
                      tile.residuals.data() + t * norms);
  }
  return tile;
}

}  // namespace

void BandsPolicy::clear() {
  coded_ = escaped_ = 0;
  usual_ = 0.0;
}

Status BandsPolicy::code_tile(Group& group, const RowBlock& rows, std::size_t first,
                              std::int32_t at) {
  BandsTokens& bands = *group.bands();
  const std::int32_t start = rows.positions[first];
  const std::int32_t wanted = bands.keys.empty() ? (start + static_cast<std::int32_t>(kTile) - 1) /
                                                       static_cast<std::int32_t>(kTile) *
                                                       static_cast<std::int32_t>(kTile)
                                                 : bands.keys.next_position();
  if (start != wanted ||
      rows.positions[first + kTile - 1] != start + static_cast<std::int32_t>(kTile) - 1) {
    return fail(
        ErrorCode::kUnsupported,
        "bands codes consecutive positions from a multiple of {}; found {} to {} where {} was "
        "next",
        kTile, start, rows.positions[first + kTile - 1], wanted);
  }
  const TileCodes keys = encode(bands.keys, rows, first);
  TileCodes values;
  if (bands.values) values = encode(*bands.values, rows, first);
  std::uint16_t mask = 0;
  std::array<std::uint8_t, kTile> escape{};
  for (std::size_t t = 0; t < kTile; ++t) {
    const double error = keys.errors[t] + (bands.values ? values.errors[t] : 0.0);
    ++coded_;
    const bool out =
        usual_ > 0.0 && error > kFarOut * usual_ &&
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
  bands.keys.append(position, keys.codes.data(), keys.gains.data(), mask, keys.norms());
  if (bands.values) {
    bands.values->append(position, values.codes.data(), values.gains.data(), mask, values.norms());
  }
  group.move_out(at, escape);
  return {};
}

// With ends at 8 bits, tile by tile: the oldest full-rank one becomes an int8 segment, and when
// more of those wait than `recent` asks for beside the full-rank rows, the oldest is coded. The
// order of these steps, and so the segments, does not depend on how the rows came.
Status BandsPolicy::settle_narrow(Group& group) {
  constexpr auto tile = static_cast<std::int32_t>(kTile);
  const OneCode keys(options_.ends->keys->start), values(options_.ends->values->start);
  const auto narrow = [&](std::int32_t n) {
    return group.code(group.read(0, n), 0, static_cast<std::size_t>(n), keys.span(), values.span());
  };
  if (group.settled() < options_.sink) {
    if (group.waiting() < options_.sink) return {};
    KVSPAN_CHECK_OK(narrow(options_.sink));
  }
  const std::int32_t kept = std::max(0, options_.recent - 1) / tile * tile;
  while (group.waiting() >= 2 * tile) {
    KVSPAN_CHECK_OK(narrow(tile));
    const std::int32_t oldest = options_.sink + static_cast<std::int32_t>(escaped_);
    if (group.settled() - oldest < kept + tile) continue;
    KVSPAN_CHECK_OK(code_tile(group, group.read_tokens(oldest, tile), 0, oldest));
  }
  return {};
}

Status BandsPolicy::settle(Group& group) {
  if (options_.ends) return settle_narrow(group);
  constexpr auto tile = static_cast<std::int32_t>(kTile);
  const std::int32_t tiles = (group.waiting() - options_.recent) / tile;
  if (tiles < 1) return {};
  const RowBlock rows = group.read(0, tiles * tile);
  for (std::int32_t i = 0; i < tiles; ++i) {
    KVSPAN_CHECK_OK(code_tile(group, rows, static_cast<std::size_t>(i) * kTile, group.settled()));
  }
  return {};
}

Status BandsPolicy::save(const StateWriter& to) const {
  to.out.put(coded_);
  to.out.put(escaped_);
  to.out.put(usual_);
  return {};
}

Status BandsPolicy::load(const Group& group, const StateReader& from) {
  KVSPAN_CHECK_OK(check_segments(group, {.plan = options_.ends.get()}, from.in));
  KVSPAN_TRY(coded_, get_between<std::int64_t>("tokens coded", 0, kMostTokens, from.in));
  KVSPAN_TRY(escaped_, get_between<std::int64_t>("tokens escaped", 0, coded_, from.in));
  return from.in.get_finite("usual coding error", std::span<double>(&usual_, 1),
                            std::numeric_limits<double>::max());
}

}  // namespace kvspan
