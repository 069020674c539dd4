// SPDX-License-Identifier: Apache-2.0
// A tile of 16 tokens on its way into bands: codes, gains and coding errors, not yet in a store. Tokens of a tile are
// coded independently of each other, four at a time, so that several threads can share one tile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/bands/bands_tokens.h"
#include "cache/rows/row_block.h"

namespace kvspan {

class CodedTile {
 public:
  static constexpr std::size_t kTokens = kBandTokens;
  static constexpr std::size_t kPiece = 4;  // tokens that are coded at once
  static constexpr std::size_t kPieces = kTokens / kPiece;

  explicit CodedTile(const BandsTokens& bands);

  // What is coded of one layer. first_values: those of the sequence's first token, of all heads; empty where they are not
  // known.
  struct LayerRows {
    const BandsTokens& bands;
    RowBlock rows;
    std::span<const float> first_values;
  };
  // Codes tokens kPiece * piece and on, which are rows `first` and on of every layer of the code. Pieces may be coded at the
  // same time.
  void encode(std::span<const LayerRows> layers, std::size_t first, std::size_t piece);

  // Of a token: the squared error in the metric, what components without bits leave included. Where both sides share a
  // code, that of both stands under keys.
  double key_error(std::size_t token) const noexcept { return keys_.errors[token]; }
  double value_error(std::size_t token) const noexcept { return values_.errors[token]; }
  // The same of both sides, of the components that have bits alone.
  double coded_error(std::size_t token) const noexcept {
    return keys_.coded_errors[token] + values_.coded_errors[token];
  }
  // Whether its values are nearly those of the first token, in any layer.
  bool like_first(std::size_t token) const noexcept { return like_first_[token] != 0; }
  void append_to(BandsTokens& bands, std::int32_t position, std::uint16_t escaped) const;

 private:
  struct Side {
    std::vector<std::int8_t> codes;  // [16, places]
    std::array<std::int8_t, kTokens> gains{};
    std::array<double, kTokens> errors{}, coded_errors{};
    std::vector<BFloat16> residuals;  // [16, residual_norms], where the store keeps them

    void prepare(const BandsStore& store);
    void encode(std::span<const LayerRows> layers, bool values_alone, std::size_t first, std::size_t at);
    void append_to(BandsStore& store, std::int32_t position, std::uint16_t escaped) const;
  };

  Side keys_, values_;  // values: where they have a store of their own
  std::array<std::uint8_t, kTokens> like_first_{};
};

}  // namespace kvspan
