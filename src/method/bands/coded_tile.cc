// SPDX-License-Identifier: Apache-2.0
#include "method/bands/coded_tile.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "cache/bands/bands_residuals.h"

namespace kvspan {
namespace {

// A token is like the first when the cosine between their values, of all heads, is above this. Massive activations,
// which a model gives to its first token and to a few others, drown what a token says: those few have nearly the first
// one's values, other tokens nothing of the kind.
constexpr double kLikeFirst = 0.7;

double cosine(const float* a, std::span<const float> b) {
  double product = 0.0, square_a = 0.0, square_b = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    product += double{a[i]} * double{b[i]};
    square_a += double{a[i]} * double{a[i]};
    square_b += double{b[i]} * double{b[i]};
  }
  return square_a > 0.0 && square_b > 0.0 ? product / std::sqrt(square_a * square_b) : 0.0;
}

}  // namespace

CodedTile::CodedTile(const BandsTokens& bands) {
  keys_.prepare(bands.keys());
  if (!bands.joint()) values_.prepare(bands.value_store());
}

void CodedTile::encode(std::span<const LayerRows> layers, std::size_t first, std::size_t piece) {
  const std::size_t at = kPiece * piece;
  keys_.encode(layers, false, first, at);
  if (!layers.back().bands.joint()) values_.encode(layers, true, first, at);
  for (std::size_t t = 0; t < kPiece; ++t) {
    like_first_[at + t] = std::any_of(layers.begin(), layers.end(), [&](const LayerRows& layer) {
      const float* values = layer.rows.values.data() + (first + t) * layer.rows.value_width();
      return cosine(values, layer.first_values) > kLikeFirst;
    });
  }
}

void CodedTile::append_to(BandsTokens& bands, std::int32_t position, std::uint16_t escaped) const {
  keys_.append_to(bands.keys(), position, escaped);
  if (bands.values() != nullptr) values_.append_to(*bands.values(), position, escaped);
}

void CodedTile::Side::prepare(const BandsStore& store) {
  codes.resize(kTokens * static_cast<std::size_t>(store.code().places()));
  if (store.has_residuals()) {
    residuals.resize(kTokens * static_cast<std::size_t>(BandsStore::residual_norms(store.code())));
  }
}

void CodedTile::Side::encode(std::span<const LayerRows> layers, bool values_alone, std::size_t first, std::size_t at) {
  const auto store_of = [&](const LayerRows& layer) -> const BandsStore& {
    return values_alone ? layer.bands.value_store() : layer.bands.keys();
  };
  const BandsCode& code = store_of(layers.back()).code();
  const auto places = static_cast<std::size_t>(code.places());
  constexpr auto kCount = static_cast<std::int32_t>(kPiece);
  std::vector<float> z, c(kPiece * places), back(places);
  std::vector<std::int8_t> values(kPiece * places);  // what codes stand for
  std::array<double, kPiece> squares{};
  for (const LayerRows& layer : layers) {
    const BandsCode& own = store_of(layer).code();
    const auto width = static_cast<std::size_t>(own.width());
    const KvRows view = layer.rows.rows(first, kPiece);
    z.resize(kPiece * width);
    for (std::size_t t = 0; t < kPiece; ++t) {
      own.gather(view.keys.row(t, 0), view.values.row(t, 0), view.positions[t], z.data() + t * width);
    }
    own.analyse(kCount, z.data(), c.data(), squares.data());
  }
  code.quantize(kCount, c.data(), codes.data() + at * places, gains.data() + at, values.data());
  const KvRows view = layers.back().rows.rows(first, kPiece);
  std::optional<BandsResiduals> far;
  if (!residuals.empty()) far.emplace(code);
  const auto norms = static_cast<std::size_t>(BandsStore::residual_norms(code));
  for (std::size_t t = 0; t < kPiece; ++t) {
    const std::int8_t* held = values.data() + t * places;
    code.decode(held, gains[at + t], back.data());
    double coded = 0.0, held_square = 0.0;
    for (std::size_t i = 0; i < places; ++i) {
      const double x = double{c[t * places + i]}, off = x - double{back[i]};
      coded += off * off;
      held_square += x * x;
    }
    coded_errors[at + t] = coded;
    errors[at + t] = coded + std::max(0.0, squares[t] - held_square);
    if (!far) continue;
    far->measure(view.keys.row(t, 0), view.values.row(t, 0), view.positions[t], held,
                 gains[at + t], residuals.data() + (at + t) * norms);
  }
}

void CodedTile::Side::append_to(BandsStore& store, std::int32_t position, std::uint16_t escaped) const {
  store.append(position, codes.data(), gains.data(), escaped, residuals.empty() ? nullptr : residuals.data());
}

}  // namespace kvspan
