// SPDX-License-Identifier: Apache-2.0
// The gains of a tile's tokens, as factors.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "cache/bands/bands_store.h"

namespace kvspan::detail {

// log_gain by table: one power of two for each token would cost as much as its products.
inline const float* gain_table() {
  static const std::array<float, 256> kGains = [] {
    std::array<float, 256> gains;
    for (int c = -128; c < 128; ++c) {
      gains[static_cast<std::size_t>(c + 128)] = log_gain(static_cast<std::int8_t>(c));
    }
    return gains;
  }();
  return kGains.data() + 128;
}

// gains: [BandsStore::kTileTokens].
inline void load_gains(const BandsStore& store, std::int32_t tile, float* gains) {
  constexpr std::int32_t kTokens = BandsStore::kTileTokens;
  if (!store.code().gain()) {
    std::fill_n(gains, kTokens, 1.0f);
    return;
  }
  const std::int8_t* const codes = store.gains(tile);
  const float* const table = gain_table();
  for (std::int32_t t = 0; t < kTokens; ++t) gains[t] = table[codes[t]];
}

}  // namespace kvspan::detail
