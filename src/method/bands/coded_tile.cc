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

void CodedTile::encode(const BandsTokens& bands, const RowBlock& rows, std::size_t first, std::size_t piece,
                       std::span<const float> first_values) {
  const std::size_t at = kPiece * piece;
  keys_.encode(bands.keys(), rows, first, at);
  if (!bands.joint()) values_.encode(bands.value_store(), rows, first, at);
  for (std::size_t t = 0; t < kPiece; ++t) {
    like_first_[at + t] = cosine(rows.values.data() + (first + t) * first_values.size(), first_values) > kLikeFirst;
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

void CodedTile::Side::encode(const BandsStore& store, const RowBlock& rows, std::size_t first, std::size_t at) {
  const BandsCode& code = store.code();
  const auto places = static_cast<std::size_t>(code.places()), width = static_cast<std::size_t>(code.width());
  std::vector<float> z(kPiece * width), c(kPiece * places), back(places);
  std::vector<std::int8_t> values(kPiece * places);  // what codes stand for
  std::array<double, kPiece> squares;
  const KvRows view = rows.rows(first, kPiece);
  for (std::size_t t = 0; t < kPiece; ++t) {
    code.gather(view.keys.row(t, 0), view.values.row(t, 0), view.positions[t], z.data() + t * width);
  }
  std::int8_t* found = codes.data() + at * places;
  code.encode(static_cast<std::int32_t>(kPiece), z.data(), found, gains.data() + at, c.data(), values.data(),
              squares.data());
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
