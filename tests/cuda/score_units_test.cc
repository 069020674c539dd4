// SPDX-License-Identifier: Apache-2.0
// Coefficients of shifted bytes against sums over single codes, from tiles as the device holds them.
#include "cuda/bands/score_units.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "codec/bands/bands_pack.h"
#include "tests/cuda/unit_bytes.h"

namespace kvspan::testing {
namespace {

using cuda::BandsTiles;
using cuda::ScoreUnit;
using cuda::UnitForm;

TEST(ScoreUnits, SumsOfShiftedBytesAreSumsOfCodes) {
  std::mt19937 random(5);
  std::vector<std::uint8_t> bits;
  for (const int width : {8, 6, 5, 4, 3, 2, 1}) bits.insert(bits.end(), 60, std::uint8_t(width));
  const BandsLayout layout = BandsLayout::create(bits).value();
  const BandsTiles tiles(layout);
  ASSERT_EQ(tiles.chunks(), 16);  // 15 quads of each width: 195 of digits of 2 bits, 45 of 1 bit
  std::vector<std::byte> tile(tiles.tile_bytes());
  std::vector<std::vector<double>> levels(32, std::vector<double>(bits.size()));
  for (int t = 0; t < 32; ++t) {
    for (int p = 0; p < int(bits.size()); ++p) {
      const int width = bits[std::size_t(p)], half = 1 << (width - 1);
      const auto code = std::int8_t(int(random() % (1u << width)) - half);
      tiles.put(tile.data(), t, p, code);
      levels[std::size_t(t)][std::size_t(p)] = code + 0.5;
    }
  }
  std::vector<double> q(bits.size());
  std::normal_distribution<double> normal;
  for (double& x : q) x = normal(random);
  const std::vector<ScoreUnit> units = cuda::score_units(tiles);
  ASSERT_EQ(units.size(), 17u);  // the chunk with the highest digits of 8 bits has two
  const int last = units.back().exponent;
  for (int t = 0; t < 32; ++t) {
    double sum = 0.0, off = 0.0, expected = 0.0;
    int before = units.front().exponent;
    for (const ScoreUnit& unit : units) {
      if (unit.refines) continue;  // nothing is rounded here
      ASSERT_GE(unit.exponent, before);
      sum = std::ldexp(sum, unit.exponent - before);
      before = unit.exponent;
      const UnitForm& form = cuda::unit_form(unit.kind);
      for (int c = 0; c < 4; ++c) {
        const std::vector<int> bytes = unit_bytes_of(tile.data(), unit, t, c);
        for (std::size_t i = 0; i < 16; ++i) {
          double coefficient = 0.0;
          for (std::size_t f = 0; f < 16; ++f) {
            const auto& digit = tiles.digits()[std::size_t(unit.chunk) * 16 + std::size_t(c) * 4 + f / 4];
            if (digit.quad < 0) continue;
            const int above = digit.shift - unit.shift;
            coefficient +=
                std::ldexp(form.inverse[i][f], form.exponent + above) * q[std::size_t(digit.quad) * 4 + f % 4];
          }
          sum += coefficient * bytes[i];
          off += std::ldexp(0.5 * coefficient * form.full[i], last - unit.exponent);
        }
      }
    }
    for (std::size_t p = 0; p < bits.size(); ++p) expected += q[p] * levels[std::size_t(t)][p];
    EXPECT_NEAR(std::ldexp(sum - off, -last), expected, 1e-9 * double(bits.size()));
  }
}

TEST(ScoreUnits, PairsHaveOneExponentAndAllDigits) {
  std::vector<std::uint8_t> bits;
  for (const int width : {8, 6, 4, 2}) bits.insert(bits.end(), 60, std::uint8_t(width));
  const BandsTiles tiles(BandsLayout::create(bits).value());
  ASSERT_EQ(tiles.chunks(), 10);  // 15 quads of each width: 150 of digits
  const std::vector<ScoreUnit> units = cuda::paired_units(tiles, 12);
  ASSERT_EQ(units.size(), 14u);  // the first pair has the highest digits of 8 bits
  for (std::size_t i = 0; i < units.size(); ++i) {
    EXPECT_EQ(units[i].chunk, int(i < 12 ? i : i - 12));
    EXPECT_EQ(units[i].refines, i >= 12);
    EXPECT_EQ(units[i].exponent, units[i - i % 2].exponent);
    if (i > 0) {
      EXPECT_GE(units[i].exponent, units[i - 1].exponent);
    }
    if (units[i].chunk < 10) {
      EXPECT_GE(units[i].shift, tiles.shift(units[i].chunk));
    }
  }
}

// What rounding coefficients to bytes may add to a score (tests/cuda/device_run.h counts with it).
TEST(ScoreUnits, CoefficientsAreHardlyLargerThanQueries) {
  for (const int kind : {1, 2}) {
    const UnitForm& form = cuda::unit_form(kind);
    for (std::size_t i = 0; i < 16; ++i) {
      double sum = 0.0;
      for (const double x : form.inverse[i]) sum += std::abs(std::ldexp(x, form.exponent));
      EXPECT_LE(sum, 1.51) << kind << " byte " << i;
    }
  }
}

}  // namespace
}  // namespace kvspan::testing
