// SPDX-License-Identifier: Apache-2.0
#include "attention/bands/certificate_bands.h"

#include <algorithm>
#include <cmath>

#include "attention/bands/kernels/bands_kernels.h"
#include "cache/rope.h"
#include "cache/visible.h"

namespace kvspan::detail {
namespace {

// Codes of one token, [places], out of an unpacked tile.
void pick(const std::vector<std::int8_t>& tile, std::int32_t token, std::vector<std::int8_t>& to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = tile[i / kBandQuad * kBandCodes + static_cast<std::size_t>(token) * kBandQuad +
                 i % kBandQuad];
  }
}

// |W^-1/2 q|: times |W^1/2 (k - k^)| at least |q.(k - k^)|.
double weighed_size(const float* q, const float* weights, std::size_t n) {
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) sum += double{q[i]} * double{q[i]} / double{weights[i]};
  return std::sqrt(sum);
}

double gain_of(const BandsStore& store, std::int32_t tile, std::int32_t t) {
  return store.code().gain() ? double{log_gain(store.gains(tile)[t])} : 1.0;
}

}  // namespace

BandsFacts::BandsFacts(const BandsStore& keys, const BandsStore& values, std::int32_t head,
                       const std::function<bool(std::int32_t)>& reads)
    : code_(keys.code()),
      head_(head),
      value_dim_(values.code().value_dim()),
      reader_(keys.code()),
      column_sums_(static_cast<std::size_t>(keys.code().places())) {
  constexpr std::int32_t kTile = BandsStore::kTileTokens;
  const BandsCode& value_code = values.code();
  const auto places = static_cast<std::size_t>(code_.places());
  const auto value_places = static_cast<std::size_t>(value_code.places());
  const auto dk = static_cast<std::size_t>(code_.key_dim());
  const auto dv = static_cast<std::size_t>(value_dim_);
  key_size_ = norm(reader_.key_rows(head), dk * places);
  for (std::size_t i = 0; i < dk * places; ++i) {
    column_sums_[i % places] += std::abs(double{reader_.key_rows(head)[i]});
  }
  std::vector<float> value_rows(dv * value_places);
  value_code.widen(value_code.value_rows(head), value_dim_, value_code.places(), value_rows.data());
  double longest = 0.0;  // row of B_v
  for (std::size_t j = 0; j < dv; ++j) {
    longest = std::max(longest, norm(value_rows.data() + j * value_places, value_places));
  }
  std::vector<std::int8_t> key_tile(code_.layout().unpacked_bytes()), codes(places);
  std::vector<std::int8_t> value_tile(value_code.layout().unpacked_bytes());
  std::vector<std::int8_t> value_codes(value_places);
  std::vector<double> x(dk);
  std::vector<float> row(dk), stepped(value_places);
  for (std::int32_t tile = 0; tile < keys.tiles(); ++tile) {
    if (!reads(tile)) continue;
    keys.unpack(tile, key_tile.data());
    values.unpack(tile, value_tile.data());
    for (std::int32_t t = 0; t < kTile; ++t) {
      if ((keys.escaped(tile) >> t & 1) != 0) continue;
      pick(key_tile, t, codes);
      pick(value_tile, t, value_codes);
      Token token;
      token.position = keys.first_position() + tile * kTile + t;
      token.tile = tile;
      token.anchor = code_.anchor_of(token.position);
      token.key_lost = keys.key_residual(head, tile * kTile + t);
      token.value_lost = values.value_residual(head, tile * kTile + t);
      token.key_gain = gain_of(keys, tile, t);
      reader_.read_key(head, codes.data(), keys.gains(tile)[t], x.data());
      token.mean = norm(code_.key_mean(head), dk);
      for (std::size_t j = 0; j < dk; ++j) {
        token.sum += std::abs(x[j]);
        row[j] = static_cast<float>(x[j]);
      }
      code_.to_key(head, token.position, row.data());
      keys_.insert(keys_.end(), row.begin(), row.end());
      double squares = 0.0;
      std::int32_t first = 0;  // that has no finer digit
      for (const BandsCode::ScaleRange& range : code_.scale_ranges()) {
        double sum = 0.0;
        for (std::int32_t p = 4 * std::max(first, range.first_quad); p < 4 * (range.first_quad + range.quads); ++p) {
          const double number = codes[static_cast<std::size_t>(p)];
          sum += std::abs(number);
          squares += number * number;
        }
        range_codes_.push_back(sum);
        first = range.first_quad + range.quads;
      }
      token.key_codes = std::sqrt(squares) + std::sqrt(static_cast<double>(places));
      token.step = gain_of(values, tile, t);
      for (std::size_t p = 0; p < value_places; ++p) {
        stepped[p] = value_code.steps()[p] * static_cast<float>(value_codes[p]);
      }
      // B_v (steps code), and with the half of each code and the gain the value itself.
      const float* b = value_rows.data();
      const float* value_mean = value_code.value_mean(head);
      double moved = 0.0, coefficients = 0.0;
      for (std::size_t p = 0; p < value_places; ++p) {
        const double c = token.step * double{value_code.steps()[p]} * (value_codes[p] + 0.5);
        coefficients += c * c;
      }
      for (std::size_t j = 0; j < dv; ++j, b += value_places) {
        double off = 0.0, value = 0.0;
        for (std::size_t p = 0; p < value_places; ++p) {
          off += double{b[p]} * double{stepped[p]};
          value += double{b[p]} * double{value_code.steps()[p]} * (value_codes[p] + 0.5);
        }
        moved += off * off;
        values_.push_back(static_cast<float>(double{value_mean[j]} + token.step * value));
      }
      token.codes = std::sqrt(moved);
      // Sums of coefficients over stretches of tiles, then of places; the mean is added once.
      token.value_rounding =
          (2.0 * static_cast<double>(value_places + 32) + static_cast<double>(keys.tiles())) *
          kRound * (longest * std::sqrt(coefficients) + norm(value_mean, dv));
      tokens_.push_back(token);
    }
  }
}

BandsFacts::Turned BandsFacts::turn(const float* q, std::int32_t anchor) const {
  const auto dk = static_cast<std::size_t>(code_.key_dim());
  const auto places = static_cast<std::size_t>(code_.places());
  std::vector<float> u(q, q + dk);
  if (code_.anchor_block() > 0) {
    const Rope& rope = code_.rope();
    std::vector<float> cosines(rope.angles.size()), sines(rope.angles.size());
    rope_turn(rope, -anchor, rope.magnitude, cosines.data(), sines.data());
    apply_turn(rope, cosines.data(), sines.data(), u.data());
  }
  Turned turned;
  if (code_.before_rope()) {  // a query meets every key as it is
    turned.size = std::abs(double{code_.rope().magnitude}) * norm(q, dk);
    turned.moved = turned.size * key_size_;
    turned.range_rounding.assign(code_.scale_ranges().size(), 0.0);
    return turned;
  }
  double largest = 0.0;
  for (const float x : u) largest = std::max(largest, std::abs(double{x}));
  turned.rounding = kBandsRounding * largest;
  if (code_.fine()) turned.rounding *= kRestRounding;
  turned.size = norm(u.data(), dk);
  std::vector<double> moved(places);
  const float* row = reader_.key_rows(head_);
  for (std::size_t j = 0; j < dk; ++j, row += places) {
    for (std::size_t p = 0; p < places; ++p) moved[p] += double{u[j]} * double{row[p]};
  }
  double squares = 0.0;
  for (std::size_t p = 0; p < places; ++p) {
    moved[p] = std::abs(moved[p]) + turned.rounding * column_sums_[p];
    squares += moved[p] * moved[p];
  }
  turned.moved = std::sqrt(squares);
  const std::span<const BandsCode::ScaleRange> ranges = code_.scale_ranges();
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const BandsCode::ScaleRange& scaled = ranges[ranges[i].rest ? i + 1 : i];
    const auto first = moved.begin() + 4 * scaled.first_quad;
    const double of_digit = kBandsRounding * *std::max_element(first, first + 4 * scaled.quads);
    turned.range_rounding.push_back(ranges[i].rest ? of_digit * kRestRounding : of_digit);
  }
  return turned;
}

void BandsFacts::look(const LayerShape& layer, const float* q, std::int32_t position,
                      std::vector<Seen>& seen) const {
  const auto dk = static_cast<std::size_t>(code_.key_dim());
  const auto dv = static_cast<std::size_t>(value_dim_);
  const std::size_t ranges = code_.scale_ranges().size();
  const double scale = std::abs(double{layer.logit_scale}),
               weighed = weighed_size(q, code_.key_weights(head_), dk);
  // A query is turned from anchor to anchor, each time with the errors of a few products.
  const std::int32_t block = code_.anchor_block();
  const double turns =
      block > 0 ? 4.0 + static_cast<double>(tokens_.size()) / static_cast<double>(block) : 0.0;
  const double per_unit =
      2.0 * (static_cast<double>(dk) + static_cast<double>(code_.places()) + 4.0 * turns + 32.0) *
      kRound;
  const std::int32_t first = first_seen(layer, position);
  Turned turned;
  std::int32_t anchor = -1;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const Token& token = tokens_[i];
    if (token.position > position || token.position < first) continue;
    if (anchor != token.anchor || turned.range_rounding.empty()) {
      turned = turn(q, token.anchor);
      anchor = token.anchor;
    }
    double dot = 0.0, rounded = turned.rounding * token.sum;
    for (std::size_t j = 0; j < dk; ++j) dot += double{q[j]} * double{keys_[i * dk + j]};
    for (std::size_t r = 0; r < ranges; ++r) {
      rounded += token.key_gain * turned.range_rounding[r] * range_codes_[i * ranges + r];
    }
    Seen one;
    one.position = token.position;
    one.logit = double{layer.logit_scale} * dot;
    one.coding = scale * weighed * token.key_lost;
    one.drift = scale * (rounded + (per_unit + AnchoredMeans::kError) * turned.size * token.mean +
                         per_unit * token.key_gain * turned.moved * token.key_codes);
    one.value = values_.data() + i * dv;
    one.lost = token.value_lost;
    one.rounding = token.value_rounding;
    one.step = token.step;
    one.codes = token.codes;
    // A stretch of tiles is rounded with one scale, and may begin at any.
    one.together = this;
    one.share = kBandsRounding;
    one.place = token.tile;
    one.reach = kBandsStretchTiles - 1;
    seen.push_back(one);
  }
}

}  // namespace kvspan::detail
