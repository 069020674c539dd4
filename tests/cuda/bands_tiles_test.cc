// SPDX-License-Identifier: Apache-2.0
#include "cuda/bands/bands_tiles.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"
#include "codec/bands/bands_pack.h"

namespace kvspan::cuda {
namespace {

TEST(BandsTiles, EveryBitOfAChunkBelongsToOneDigit) {
  for (const int width : {1, 2}) {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(chunk_words(width)), 0);
    for (int token = 0; token < kTileTokens; ++token) {
      for (int place = 0; place < kChunkPlaces; ++place) {
        const DigitField field = field_of(width, token, place);
        EXPECT_EQ(token_of_half(width, 2 * field.word + field.shift / 16), token);
        ASSERT_LT(field.word, chunk_words(width));
        const std::uint32_t mask = ((1u << width) - 1u) << field.shift;
        std::uint32_t& word = words[static_cast<std::size_t>(field.word)];
        EXPECT_EQ(word & mask, 0u) << "width " << width << " token " << token << " place " << place;
        word |= mask;
      }
    }
    for (const std::uint32_t word : words) EXPECT_EQ(word, ~0u) << "width " << width;
  }
}

TEST(BandsTiles, ReadsBackWhatWasPut) {
  // All widths, some of them in the middle of a chunk.
  std::vector<std::uint8_t> bits;
  for (const auto& [width, count] :
       {std::pair(8, 70), std::pair(6, 30), std::pair(5, 64), std::pair(4, 33), std::pair(3, 64),
        std::pair(2, 60), std::pair(1, 59), std::pair(0, 20)}) {
    bits.insert(bits.end(), static_cast<std::size_t>(count), static_cast<std::uint8_t>(width));
  }
  const BandsLayout layout = BandsLayout::create(bits).value();
  const BandsTiles tiles(layout);
  // Quads of 8, 6, 5, 4, 3, 2 and 1 bits: 18, 7, 16, 9, 16, 15 and 14; digits of 2 bits, then of 1.
  int pairs = 0, bits_alone = 0, last_shift = 6;
  for (const int w : layout.quad_widths()) pairs += w / 2, bits_alone += w % 2;
  ASSERT_EQ(tiles.chunks(), (pairs + 15) / 16 + (bits_alone + 15) / 16);
  std::vector<int> bits_of(layout.quads());
  for (std::size_t i = 0; i < tiles.digits().size(); ++i) {
    const BandsTiles::DigitQuad& digit = tiles.digits()[i];
    const int width = tiles.widths()[i / 16];
    if (digit.quad < 0) continue;
    if (width == 1 && static_cast<int>(i) == (pairs + 15) / 16 * 16) last_shift = 6;
    EXPECT_LE(digit.shift, last_shift) << i;  // from the highest down
    last_shift = digit.shift;
    EXPECT_LE(digit.shift, tiles.shift(static_cast<int>(i / 16)));
    bits_of[static_cast<std::size_t>(digit.quad)] += width;
  }
  for (std::size_t q = 0; q < layout.quads(); ++q) EXPECT_EQ(bits_of[q], layout.quad_widths()[q]);
  Random random(7);
  std::vector<std::byte> tile(tiles.tile_bytes());
  std::vector<std::int8_t> codes(kTileTokens * layout.stored());
  for (int t = 0; t < kTileTokens; ++t) {
    for (std::size_t p = 0; p < layout.stored(); ++p) {
      const int width = layout.width(p);
      const auto code = static_cast<std::int8_t>(static_cast<int>(random.below(1u << width)) -
                                                 (1 << (width - 1)));
      codes[static_cast<std::size_t>(t) * layout.stored() + p] = code;
      tiles.put(tile.data(), t, static_cast<int>(p), code);
    }
    tiles.put_gain(tile.data(), t, static_cast<std::int8_t>(t - 16));
  }
  for (int t = 0; t < kTileTokens; ++t) {
    for (std::size_t p = 0; p < layout.stored(); ++p) {
      ASSERT_EQ(tiles.get(tile.data(), t, static_cast<int>(p)),
                codes[static_cast<std::size_t>(t) * layout.stored() + p])
          << "token " << t << " place " << p;
    }
    EXPECT_EQ(tiles.gain(tile.data(), t), t - 16);
  }
  EXPECT_EQ(tiles.escaped(tile.data()), 0u);
}

}  // namespace
}  // namespace kvspan::cuda
