// SPDX-License-Identifier: Apache-2.0
#include "codec/bands/trellis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "base/random.h"
#include "codec/bands/bands_pack.h"
#include "codec/bands/midrise.h"
#include "tests/codec/every_level.h"
#include "tests/codec/random_codes.h"

namespace kvspan {
namespace trellis_test {

// Mean squared error of Gaussian numbers coded in chains of `quads` at one width.
double measured_distortion(int width, Random& random, std::size_t quads, int tokens) {
  const std::vector<std::uint8_t> widths(quads, static_cast<std::uint8_t>(width));
  const std::vector<float> weights(4 * quads, 1.0f);
  std::vector<float> x(4 * quads);
  std::vector<std::int8_t> codes(x.size()), values(x.size());
  TrellisEncoder encoder;
  const double units = trellis_units(width);
  double sum = 0.0;
  for (int t = 0; t < tokens; ++t) {
    for (float& number : x) number = static_cast<float>(units * random.normal());
    encoder.encode(widths, x.data(), weights.data(), codes.data(), values.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double off = (double{x[i]} - values[i] - 0.5) / units;
      sum += off * off;
    }
  }
  return sum / (static_cast<double>(x.size()) * tokens);
}

// Of 120,000 numbers the mean squared error is known to about 1 %, at 4 bits and more to 2 %, as
// the few beyond the outermost levels make a good part of it; chains of 100 lose less than 1 % to
// their start. Twice that in all.
TEST(Trellis, LeavesTheErrorThatIsStatedAndLessThanTheUniformQuantizer) {
  Random random(70);
  for (int width = 1; width <= kTrellisMaxBits; ++width) {
    const double found = measured_distortion(width, random, 100, 300);
    EXPECT_NEAR(found / trellis_distortion(width), 1.0, 0.05) << width << " bits";
    EXPECT_LT(found, 0.85 * gaussian_midrise(width).distortion) << width << " bits";
    // No quantizer of so many bits can do better (Shannon).
    EXPECT_GT(found, std::exp2(-2.0 * width)) << width << " bits";
  }
}

double error_of(const std::vector<std::uint8_t>& widths, const std::vector<std::int8_t>& codes,
                const std::vector<float>& x, const std::vector<float>& weights, std::size_t place) {
  std::vector<std::int8_t> values(codes.size());
  trellis_values(widths, codes.data(), values.data());
  double sum = 0.0;
  for (std::size_t q = 0; q < widths.size(); ++q) {
    const double off = double{x[4 * q + place]} - values[4 * q + place] - 0.5;
    sum += double{weights[4 * q + place]} * off * off;
  }
  return sum;
}

TEST(Trellis, FindsThePathOfLeastErrorAmongAll) {
  Random random(71);
  const std::vector<std::vector<std::uint8_t>> cases = {
      {1, 1, 1, 1, 1, 1, 1, 1}, {2, 2, 1, 1, 1, 1}, {4, 3, 2, 1}, {6, 5}, {3, 2, 2, 1, 1}};
  for (const auto& widths : cases) {
    const std::size_t n = 4 * widths.size();
    std::vector<float> x(n), weights(n);
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = static_cast<float>(1.2 * trellis_units(widths[i / 4]) * random.normal());
      weights[i] = static_cast<float>(0.1 + random.uniform());
    }
    std::vector<std::int8_t> codes(n), values(n), read(n);
    TrellisEncoder().encode(widths, x.data(), weights.data(), codes.data(), values.data());
    trellis_values(widths, codes.data(), read.data());
    EXPECT_EQ(values, read);
    int bits = 0;
    for (const std::uint8_t w : widths) bits += w;
    for (std::size_t place = 0; place < 4; ++place) {
      double least = std::numeric_limits<double>::infinity();
      std::vector<std::int8_t> trial(n);
      for (int path = 0; path < 1 << bits; ++path) {
        int rest = path;
        for (std::size_t q = 0; q < widths.size(); ++q) {
          const int low = rest & ((1 << widths[q]) - 1);
          rest >>= widths[q];
          trial[4 * q + place] =
              static_cast<std::int8_t>(low >> (widths[q] - 1) != 0 ? low - (1 << widths[q]) : low);
        }
        least = std::min(least, error_of(widths, trial, x, weights, place));
      }
      // Paths are compared in float: one whose error is the same to its digits may be taken.
      EXPECT_LE(error_of(widths, codes, x, weights, place), least * (1.0 + 1e-5));
    }
  }
}

// Every choice of widths, so that each follows each, in ranges of 1 to 7 quads: histories must last
// over any of them.
TEST(Trellis, TilesUnpackToWhatTheCodesOfEachTokenStandForAtEveryLevel) {
  constexpr std::uint8_t kWidths[] = {8, 6, 5, 4, 3, 2, 1};
  Random random(72);
  at_every_level([&](CpuLevel) {
    for (unsigned chosen = 1; chosen < 1u << std::size(kWidths); ++chosen) {
      std::vector<std::uint8_t> bits;
      for (std::size_t i = 0; i < std::size(kWidths); ++i) {
        if ((chosen >> i & 1) != 0) bits.insert(bits.end(), 2 + random.below(26), kWidths[i]);
      }
      const auto layout = BandsLayout::create(bits, BandsQuantizer::kTrellis).value();
      const std::size_t places = 4 * layout.quads();
      std::vector<std::int8_t> codes(kBandTokens * places);
      for (std::size_t i = 0; i < codes.size(); ++i) {
        if (i % places >= layout.stored()) continue;
        codes[i] = random_code(random, layout.width(i % places));
      }
      std::vector<std::uint8_t> tile(layout.tile_bytes());
      layout.pack(codes.data(), kBandTokens, places, tile.data());
      std::vector<std::int8_t> unpacked(layout.unpacked_bytes()), values(places);
      layout.unpack(tile.data(), unpacked.data());
      for (std::size_t t = 0; t < kBandTokens; ++t) {
        layout.values(codes.data() + t * places, values.data());
        for (std::size_t i = 0; i < places; ++i) {
          ASSERT_EQ(unpacked[i / 4 * kBandCodes + 4 * t + i % 4], values[i])
              << "widths " << chosen << ", token " << t << ", place " << i;
        }
      }
    }
  });
}

}  // namespace trellis_test
}  // namespace kvspan
