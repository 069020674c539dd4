// SPDX-License-Identifier: Apache-2.0
#include "codec/bands/bands_pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "tests/codec/every_level.h"
#include "tests/codec/random_codes.h"

namespace kvspan {
namespace bands_pack_test {

constexpr int kWidths[] = {1, 2, 3, 4, 5, 6, 8};

std::vector<std::uint8_t> random_bits(Random& random, std::size_t n) {
  constexpr std::uint8_t kLevels[] = {0, 1, 2, 3, 4, 5, 6, 8};
  std::vector<std::uint8_t> bits(n);
  for (auto& b : bits) b = kLevels[random.below(8)];
  return bits;
}

TEST(BandsLayout, SortsByLevelAndRaisesOnlyWithinAQuad) {
  //                                     0  1  2  3  4  5  6  7  8  9
  const std::vector<std::uint8_t> bits{2, 0, 8, 3, 2, 3, 0, 2, 3, 1};
  const auto layout = BandsLayout::create(bits).value();
  const std::vector<std::uint32_t> order{2, 3, 5, 8, 0, 4, 7, 9};
  EXPECT_TRUE(std::equal(order.begin(), order.end(), layout.order().begin(), layout.order().end()));
  EXPECT_EQ(layout.quads(), 2u);
  EXPECT_EQ(layout.width(3), 8);
  EXPECT_EQ(layout.width(4), 2);
  EXPECT_EQ(layout.tile_bytes(), 8u * (8 + 2));
}

TEST(BandsLayout, EveryComponentGetsAtLeastItsBitsAndNoneIsStoredTwice) {
  Random random(61);
  for (std::size_t n = 0; n < 90; ++n) {
    const auto bits = random_bits(random, n);
    const auto layout = BandsLayout::create(bits).value();
    std::vector<int> seen(n, 0);
    std::size_t bytes = 0, asked = 0;
    for (std::size_t i = 0; i < layout.stored(); ++i) {
      const std::uint32_t c = layout.order()[i];
      ++seen[c];
      EXPECT_GE(layout.width(i), bits[c]);
      if (i > 0) {
        EXPECT_LE(layout.width(i), layout.width(i - 1));
      }
    }
    for (std::size_t q = 0; q < layout.quads(); ++q) {
      bytes += 8u * static_cast<unsigned>(layout.width(4 * q));
    }
    for (std::size_t c = 0; c < n; ++c) {
      EXPECT_TRUE(seen[c] == 1 || (seen[c] == 0 && bits[c] == 0));
      asked += bits[c];
    }
    EXPECT_EQ(layout.tile_bytes(), bytes);
    // Two bytes a bit and component; raising adds at most three components per change of level, the
    // sum of all changes being 8 bits.
    EXPECT_GE(bytes, 2 * asked);
    EXPECT_LE(bytes, 2 * (asked + 3 * 8));
  }
}

TEST(BandsLayout, QuadsAreNarrowFromTheLastThatIsNot) {
  Random random(62);
  for (const BandsQuantizer quantizer : {BandsQuantizer::kUniform, BandsQuantizer::kTrellis}) {
    for (std::size_t n = 0; n < 90; ++n) {
      const auto layout = BandsLayout::create(random_bits(random, n), quantizer).value();
      for (std::size_t k = 0; k < NarrowQuads::kMost.size(); ++k) {
        std::int32_t first = 0;
        for (std::size_t q = 0; q < layout.quads(); ++q) {
          if (layout.largest(layout.width(4 * q)) > NarrowQuads::kMost[k]) first = std::int32_t(q) + 1;
        }
        EXPECT_EQ(layout.narrow_quads().first[k], first);
      }
    }
  }
}

TEST(BandsLayout, SevenBitsAndMoreThanEightAreRefused) {
  for (const std::uint8_t bad : {7, 9, 255}) {
    const auto layout = BandsLayout::create(std::vector<std::uint8_t>{1, bad});
    ASSERT_FALSE(layout);
    EXPECT_EQ(layout.error().message,
              "component 1: " + std::to_string(bad) + " bits; allowed are 0 to 6 and 8");
  }
}

// Read by a function written from the header's text alone.
int field(const std::uint8_t* plane, int bits, std::size_t e) {
  if (bits == 8) return plane[e];
  if (bits == 4) return plane[16 * (e / 32) + e % 16] >> 4 * (e / 16 % 2) & 15;
  if (bits == 2) return plane[e % 16] >> 2 * (e / 16) & 3;
  return plane[e % 8] >> e / 8 & 1;
}
int code_at(const std::uint8_t* quad, int width, std::size_t e) {
  int raw = 0;
  if (width == 3) {
    raw = field(quad, 2, e) | field(quad + 16, 1, e) << 2;
  } else if (width == 5) {
    raw = field(quad, 4, e) | field(quad + 32, 1, e) << 4;
  } else if (width == 6) {
    raw = field(quad, 4, e) << 2 | field(quad + 32, 2, e);
  } else {
    raw = field(quad, width, e);
  }
  return raw >= 1 << (width - 1) ? raw - (1 << width) : raw;
}

TEST(BandsKernels, PackedQuadsFollowTheDocumentedLayoutAndUnpackAlikeAtEveryLevel) {
  Random random(62);
  at_every_level([&](CpuLevel level) {
    const BandsKernels& kernels = bands_kernels(level);
    for (const int width : kWidths) {
      for (const std::size_t quads : {1u, 2u, 3u, 7u}) {
        std::vector<std::int8_t> codes(quads * kBandCodes), back(codes.size());
        for (auto& c : codes) c = random_code(random, width);
        const std::size_t quad_bytes = 8u * static_cast<unsigned>(width);
        // One byte in front, so that addresses are odd.
        std::vector<std::uint8_t> packed(1 + quads * quad_bytes, 0xee);
        kernels.pack[width](codes.data(), quads, packed.data() + 1);
        for (std::size_t i = 0; i < codes.size(); ++i) {
          ASSERT_EQ(code_at(packed.data() + 1 + i / 64 * quad_bytes, width, i % 64), codes[i])
              << "width " << width << ", code " << i;
        }
        kernels.unpack[width](packed.data() + 1, quads, back.data());
        ASSERT_EQ(back, codes) << "width " << width;
      }
    }
  });
}

TEST(BandsLayout, UnpacksWhatWasPackedForAnyBitsAndTokens) {
  Random random(63);
  at_every_level([&](CpuLevel) {
    for (const std::size_t n : {1u, 3u, 4u, 29u, 64u, 384u}) {
      for (const std::size_t tokens : {16u, 1u, 11u}) {
        const auto layout = BandsLayout::create(random_bits(random, n)).value();
        const std::size_t stride = layout.stored() + 3;
        std::vector<std::int8_t> codes(tokens * stride, 99);
        for (std::size_t t = 0; t < tokens; ++t) {
          for (std::size_t i = 0; i < layout.stored(); ++i) {
            codes[t * stride + i] = random_code(random, layout.width(i));
          }
        }
        std::vector<std::uint8_t> tile(layout.tile_bytes());
        layout.pack(codes.data(), tokens, stride, tile.data());
        std::vector<std::int8_t> all(layout.unpacked_bytes());
        layout.unpack(tile.data(), all.data());
        for (std::size_t i = 0; i < all.size(); ++i) {
          const std::size_t q = i / kBandCodes, t = i % kBandCodes / 4, place = 4 * q + i % 4;
          const bool there = t < tokens && place < layout.stored();
          ASSERT_EQ(all[i], there ? codes[t * stride + place] : 0) << "n " << n << ", at " << i;
        }
      }
    }
  });
}

}  // namespace bands_pack_test
}  // namespace kvspan
