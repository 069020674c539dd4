// SPDX-License-Identifier: Apache-2.0
// What kernels make of packed codes before they multiply, made on the host.
#pragma once

#include <cstring>
#include <vector>

#include "cuda/bands/score_units.h"

namespace kvspan::testing {

inline std::uint32_t unit_word_at(const std::byte* tile, int at) {
  std::uint32_t word = 0;
  std::memcpy(&word, tile + at, sizeof(word));
  return word;
}

// The 16 bytes that lane c makes of a token's words in a unit, as kernels make them.
inline std::vector<int> unit_bytes_of(const std::byte* tile, const cuda::ScoreUnit& unit, int token, int c) {
  std::uint32_t words[4];
  // A chunk of single bits is half as long, and may be the tile's last.
  const std::uint32_t pairs = unit.kind == 2 ? unit_word_at(tile, unit.offset + 16 * token + 4 * c) : 0;
  const int b = token / 8;
  const std::uint32_t two = unit_word_at(tile, unit.offset + 32 * cuda::quad_of(token) + 8 * c + b / 2 * 4);
  for (unsigned s = 0; s < 4; ++s) {
    words[s] = unit.kind == 1 ? cuda::spread_bits(two >> (b % 2 * 16) & 0xffffu) << s : pairs << (2 * s);
  }
  std::vector<int> bytes;
  for (unsigned i = 0; i < 16; ++i) bytes.push_back(int(words[i / 4] >> (8 * (i % 4)) & 0xffu));
  return bytes;
}

}  // namespace kvspan::testing
