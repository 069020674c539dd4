// SPDX-License-Identifier: Apache-2.0
// Bits by importance and the codes designed from a calibration.
#include "method/bands/bands_design.h"
#include "attention/bands/bands_tokens.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "codec/bands/midrise.h"
#include "method/bands/bit_allocation.h"
#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

using testing::SyntheticText;

LevelSet levels_of(const char* text) {
  return std::get<LevelSet>(*read_value(ValueKind::kLevels, text));
}

TEST(BitAllocation, DistortionsAreThoseOfTheBestUniformQuantizer) {
  for (const int bits : {0, 1, 2, 3, 4, 5, 6}) {
    // As many digits as the table has.
    EXPECT_NEAR(level_distortion(bits), gaussian_midrise(bits).distortion,
                0.006 * gaussian_midrise(bits).distortion)
        << bits;
  }
}

// No other bits of the same sum leave less distortion: moving a bit from one component to another
// never gains (the curve D(b) is convex but for the step from 6 to 8).
TEST(BitAllocation, NoExchangeOfABitGains) {
  Random random(3);
  const LevelSet levels = levels_of("0-6");
  for (int trial = 0; trial < 30; ++trial) {
    std::vector<double> power(40);
    for (double& p : power) p = std::exp(4.0 * random.normal());
    const double budget = 0.5 + 3.0 * random.uniform();
    const double slope = slope_for({power}, budget, levels);
    const std::vector<std::uint8_t> bits = choose_bits(power, slope, levels);
    double sum = 0.0;
    for (const int b : bits) sum += b;
    EXPECT_LE(sum / 40.0, budget + 1e-9);
    for (std::size_t i = 0; i < 40; ++i) {
      for (std::size_t j = 0; j < 40; ++j) {
        if (i == j || bits[i] == 6 || bits[j] == 0) continue;
        const double gained =
            power[i] * (level_distortion(bits[i]) - level_distortion(bits[i] + 1));
        const double lost = power[j] * (level_distortion(bits[j] - 1) - level_distortion(bits[j]));
        EXPECT_LE(gained, lost * (1.0 + 1e-9));
      }
    }
  }
}

// Components that get their width together get the one that is best for their sum.
TEST(BitAllocation, AGrainGetsOneWidth) {
  Random random(4);
  const LevelSet levels = levels_of("0-6/8");
  std::vector<double> power(150);
  for (double& p : power) p = std::exp(3.0 * random.normal());
  const double slope = slope_for({power}, 2.0, levels, BandsQuantizer::kUniform, 64);
  const std::vector<std::uint8_t> bits =
      choose_bits(power, slope, levels, BandsQuantizer::kUniform, 64);
  double sum = 0.0;
  for (const int b : bits) sum += b;
  EXPECT_LE(sum / 150.0, 2.0 + 1e-9);
  for (std::size_t from = 0; from < 150; from += 64) {
    const std::size_t end = std::min<std::size_t>(from + 64, 150);
    double together = 0.0;
    for (std::size_t i = from; i < end; ++i) {
      EXPECT_EQ(bits[i], bits[from]);
      together += power[i];
    }
    const auto cost = [&](int b) {
      return together * level_distortion(b) + slope * b * double(end - from);
    };
    for (const int b : {0, 1, 2, 3, 4, 5, 6, 8}) {
      EXPECT_GE(cost(b), cost(bits[from]) * (1.0 - 1e-12)) << b;
    }
  }
}

// Keys and values of two neighbours in one code: a code for each pair of heads, of both sides.
TEST(BandsDesign, NeighboursShareKeysAndValues) {
  const CacheShape shape = testing::synthetic_shape(1, 4, 16);
  const SyntheticText text(shape, 400, 9);
  const Calibration calibration = text.calibration();
  const auto prepared =
      prepare(shape, *Recipe::parse("bands:share=kvgroup,heads=2,grain=16"), &calibration);
  ASSERT_TRUE(prepared) << prepared.error().message;
  const auto& groups = (*prepared)->layers[0].groups;
  ASSERT_EQ(groups.size(), 2u);
  for (std::size_t g = 0; g < 2; ++g) {
    EXPECT_EQ(groups[g].options.first_head, std::int32_t(2 * g));
    const auto store = groups[g].make_store((*prepared)->shared);
    auto& tokens = dynamic_cast<BandsTokens&>(*store);
    EXPECT_EQ(tokens.values(), nullptr);
    EXPECT_EQ(tokens.keys().code().width(), 64);
    EXPECT_EQ(tokens.keys().code().layout().stored() % 16, 0u);
  }
}

TEST(BandsDesign, StoresTheBitsAskedFor) {
  const SyntheticText text(testing::synthetic_shape(), 400, 5);
  const Calibration calibration = text.calibration();
  for (const double bits : {1.0, 2.0, 3.0}) {
    BandsOptions options;
    options.bits = bits;
    options.levels = levels_of("0-6/8");
    const auto ledger = std::make_shared<Ledger>();
    const auto designed =
        design_bands(text.shape(), calibration, {{{0, 2}}, {{0, 2}}}, options, ledger).value();
    double stored = 0.0, elements = 0.0;
    for (const auto& layer : designed) {
      const BandsCode& code = *layer[0].keys;
      stored += double(code.layout().tile_bytes()) * 8.0 / 16.0 + 8.0;
      elements += code.width();
      EXPECT_EQ(layer[0].keys, layer[0].values);
    }
    // Few components: a quad more or less is 4 of 128.
    EXPECT_NEAR(stored / elements, bits, 0.12);
  }
}

// The more bits, the closer to full; and 8 bits for everything is as good as exact.
TEST(BandsDesign, ErrorFallsWithBits) {
  const SyntheticText text(testing::synthetic_shape(), 300, 6);
  const Calibration calibration = text.calibration();
  const auto outputs = [&](const std::string& recipe) {
    MethodCache cache(prepare(text.shape(), Recipe::parse(recipe).value(), &calibration).value());
    return testing::run(cache, text, 0, 300, 10);
  };
  const std::vector<float> full = outputs("full");
  const auto error = [&](const std::string& recipe) {
    const std::vector<float> out = outputs(recipe);
    double sum = 0.0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += std::pow(double{out[i]} - full[i], 2.0);
    return std::sqrt(sum / double(out.size()));
  };
  const std::string tail = ",sink=0,recent=0,anchor=32,escape=0";
  const double one = error("bands:bits=1" + tail), two = error("bands:bits=2" + tail);
  const double four = error("bands:bits=4" + tail), eight = error("bands:levels=8,bits=8" + tail);
  EXPECT_LT(two, 0.8 * one);
  EXPECT_LT(four, 0.6 * two);
  EXPECT_LT(eight, 0.02);
  // Equal bits spent on the plain coordinates of each head cost more.
  EXPECT_LT(two, error("quant:bits=2,group=16,sink=0,recent=0"));
}

double trellis_distortion_of(int bits) { return level_distortion(bits, BandsQuantizer::kTrellis); }

double bits_of(const BandsCode& code) {
  return double(code.layout().tile_bytes()) * 8.0 / 16.0 / double(code.width());
}

// Directions that no row has are not coded, nor do they drown the rest where they fill up a quad: the more bits, the
// less error, up to exact.
TEST(BandsDesign, DirectionsWithoutVarianceAreLeftOut) {
  SyntheticText text(testing::synthetic_shape(1), 300, 6);
  text.clear_values(5);
  const Calibration calibration = text.calibration();
  const auto outputs = [&](const std::string& recipe) {
    MethodCache cache(prepare(text.shape(), Recipe::parse(recipe).value(), &calibration).value());
    return testing::run(cache, text, 0, 300, 10);
  };
  const std::vector<float> full = outputs("full");
  double before = 1.0;
  for (const char* bits : {"2", "4", "6", "8"}) {
    const std::vector<float> out =
        outputs(std::string("bands:sink=0,recent=0,anchor=32,escape=0,bits=") + bits);
    double sum = 0.0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += std::pow(double{out[i]} - full[i], 2.0);
    const double error = std::sqrt(sum / double(out.size()));
    // From 6 bits on it is that of reading, in bytes.
    EXPECT_LT(error, std::max(0.9 * before, 1e-3)) << bits;
    before = error;
  }
  const auto prepared = prepare(text.shape(), Recipe::parse("bands:bits=8,levels=0-6/8").value(), &calibration).value();
  const auto store = prepared->layers[0].groups[0].make_store(prepared->shared);
  EXPECT_EQ(dynamic_cast<BandsTokens&>(*store).keys().code().layout().stored(), 64u - 8u);
}

// Of a direction with bits, the last of them took off at least what a bit is worth, and one more would take off less.
TEST(BandsDesign, KnowsWhatABitIsWorth) {
  const SyntheticText text(testing::synthetic_shape(), 400, 5);
  const Calibration calibration = text.calibration();
  BandsOptions options;
  options.bits = 2.0;
  options.levels = levels_of("0-6");
  const auto designed =
      design_bands(text.shape(), calibration, {{{0, 2}}, {{0, 2}}}, options, std::make_shared<Ledger>()).value();
  std::size_t raised = 0, count = 0;
  for (const auto& layer : designed) {
    const BandsCode& code = *layer[0].keys;
    for (std::size_t i = 0; i < code.layout().stored(); ++i) {
      const double power = 1.0 / std::pow(double{code.gain_rule().inverse_sigma[i]}, 2.0);
      const int bits = code.layout().width(i);
      const double last = power * (trellis_distortion_of(bits - 1) - trellis_distortion_of(bits));
      ++count;
      // Where widths change, up to three components are raised to that of their quad.
      if (last < (1 - 1e-5) * layer[0].worth.keys) ++raised;
      if (bits == 6) continue;
      EXPECT_LE(power * (trellis_distortion_of(bits) - trellis_distortion_of(bits + 1)),
                (1 + 1e-5) * layer[0].worth.keys);
    }
  }
  EXPECT_LE(raised, 3 * 6 * designed.size());
  EXPECT_GT(count, 2 * raised);
}

// What was measured to matter gets the bits, layers and sides alike, and the sum stays.
TEST(BandsDesign, WeightsMoveBits) {
  const SyntheticText text(testing::synthetic_shape(), 400, 5);
  Calibration calibration = text.calibration();
  BandsOptions options;
  options.joint = false;
  options.bits = 2.0;
  options.levels = levels_of("0-6/8");
  const auto design = [&](float first_keys, float others) {
    for (std::size_t l = 0; l < 2; ++l) {
      const float scale = text.shape().layers[l].logit_scale;  // keys count as much as values
      calibration.layers[l].key_weight = (l == 0 ? first_keys : others) / (scale * scale);
      calibration.layers[l].value_weight = others;
    }
    return design_bands(text.shape(), calibration, {{{0, 2}}, {{0, 2}}}, options,
                        std::make_shared<Ledger>())
        .value();
  };
  const auto even = design(1.0f, 1.0f), tilted = design(30.0f, 1.0f), scaled = design(7.0f, 7.0f);
  EXPECT_GT(bits_of(*tilted[0][0].keys), bits_of(*even[0][0].keys) + 0.3);
  EXPECT_LT(bits_of(*tilted[1][0].values), bits_of(*even[1][0].values));
  double before = 0.0, after = 0.0;
  for (std::size_t l = 0; l < 2; ++l) {
    before += bits_of(*even[l][0].keys) + bits_of(*even[l][0].values);
    after += bits_of(*tilted[l][0].keys) + bits_of(*tilted[l][0].values);
    // Only ratios count.
    EXPECT_EQ(scaled[l][0].keys->layout().tile_bytes(), even[l][0].keys->layout().tile_bytes());
    EXPECT_NEAR(scaled[l][0].key_distortion, 7.0 * even[l][0].key_distortion,
                1e-6 * scaled[l][0].key_distortion);
  }
  EXPECT_NEAR(after, before, 0.25);
}

// A head whose errors cost more gets less of them, in every layer of a code.
TEST(BandsDesign, MetricsOfHeadsMoveErrors) {
  CacheShape shape = testing::synthetic_shape();
  shape.layers[1].rope = shape.layers[0].rope;
  const SyntheticText text(shape, 400, 5);
  Calibration calibration = text.calibration();
  for (LayerCalibration& layer : calibration.layers) layer.key_weight = layer.value_weight = 0.5f;
  BandsOptions options;
  options.bits = 2.0;
  options.levels = levels_of("0-6/8");
  // Squared errors of the values of each head of the last layer's rows.
  const auto errors = [&](std::int32_t layers) {
    options.layers = layers;
    const auto designed = design_bands(shape, calibration, {{{0, 2}}, {{0, 2}}}, options, std::make_shared<Ledger>());
    EXPECT_TRUE(designed) << designed.error().message;
    std::vector<const BandsCode*> codes{(*designed)[1][0].keys.get()};
    if (layers == 2) codes.insert(codes.begin(), (*designed)[0][0].keys.get());
    const BandsCode& last = *codes.back();
    std::vector<float> z(std::size_t(last.width())), keys(32), values(32);
    std::vector<double> sums(2);
    for (std::int32_t t = 0; t < text.size(); ++t) {
      std::vector<float> c(std::size_t(last.places()));
      std::vector<std::int8_t> code(c.size()), stand(c.size());
      std::int8_t gain = 0;
      double square = 0.0;
      for (std::size_t i = 0; i < codes.size(); ++i) {
        const KvRows rows = text.rows(2 - codes.size() + i, t, 1);
        codes[i]->gather(rows.keys.row(0, 0), rows.values.row(0, 0), t, z.data());
        codes[i]->analyse(1, z.data(), c.data(), &square);
      }
      last.quantize(1, c.data(), code.data(), &gain, stand.data());
      last.decode(stand.data(), gain, c.data());
      last.restore(c.data(), t, keys.data(), values.data());
      for (std::size_t j = 0; j < 32; ++j) {
        sums[j / 16] += std::pow(double{values[j]} - text.rows(1, t, 1).values.row(0, 0)[j], 2.0);
      }
    }
    return sums;
  };
  const std::vector<float> even = calibration.layers[1].value_metric;
  for (const std::int32_t layers : {1, 2}) {
    calibration.layers[1].value_metric = even;
    const std::vector<double> plain = errors(layers);
    for (std::size_t i = even.size() / 2; i < even.size(); ++i) calibration.layers[1].value_metric[i] *= 20.0f;
    const std::vector<double> moved = errors(layers);
    EXPECT_LT(moved[1], 0.6 * plain[1]) << layers;
    EXPECT_GT(moved[0], plain[0]) << layers;
  }
}

// A layer of which no error counts gets a code all the same, and the others get the bits.
TEST(BandsDesign, ALayerThatCountsForNothingHasACode) {
  const SyntheticText text(testing::synthetic_shape(), 300, 5);
  Calibration calibration = text.calibration();
  for (const auto metric : {&LayerCalibration::key_metric, &LayerCalibration::value_metric}) {
    for (float& x : calibration.layers[1].*metric) x *= 1e-42f;
  }
  BandsOptions options;
  options.bits = 2.0;
  options.levels = levels_of("0-6/8");
  const auto designed = design_bands(text.shape(), calibration, {{{0, 2}}, {{0, 2}}}, options, std::make_shared<Ledger>());
  ASSERT_TRUE(designed) << designed.error().message;
  EXPECT_GT(bits_of(*(*designed)[0][0].keys), bits_of(*(*designed)[1][0].keys) + 1.0);
}

// Ends at 8 bits take about half the room of f16 ones, and cost little.
TEST(BandsDesign, EndsAtEightBits) {
  const SyntheticText text(testing::synthetic_shape(2, 2, 32), 400, 8);
  const Calibration calibration = text.calibration();
  const auto run = [&](const std::string& recipe, std::size_t* bytes) {
    MethodCache cache(prepare(text.shape(), Recipe::parse(recipe).value(), &calibration).value());
    const std::vector<float> out = testing::run(cache, text, 0, 400, 25);
    *bytes = cache.bytes().total;
    return out;
  };
  std::size_t full_bytes = 0, wide_bytes = 0, narrow_bytes = 0;
  const std::vector<float> full = run("full", &full_bytes);
  const std::vector<float> wide = run("bands:bits=4,escape=0", &wide_bytes);
  const std::vector<float> narrow = run("bands:bits=4,escape=0,ends=int8", &narrow_bytes);
  // 32 sink and 128 to 143 recent tokens of 128 numbers in 2 layers, 2 bytes against 1.0625; the
  // last 16 to 31 stay f16, in blocks of 32.
  const double wide_ends = (32 + 128) * 128.0 * 2 * 2, saved = (32 + 128 - 32) * 128.0 * 2 * 0.9375;
  EXPECT_LT(double(narrow_bytes), double(wide_bytes) - 0.8 * saved) << wide_ends;
  double off_wide = 0.0, off_narrow = 0.0, size = 0.0;
  for (std::size_t i = 0; i < full.size(); ++i) {
    off_wide += std::pow(double{wide[i]} - full[i], 2.0);
    off_narrow += std::pow(double{narrow[i]} - full[i], 2.0);
    size += std::pow(double{full[i]}, 2.0);
  }
  // Each row off by 1/254 of the largest of its 32 numbers at most, twice where it is coded too.
  EXPECT_LT(std::sqrt(off_narrow / size), std::sqrt(off_wide / size) + 0.02);
}

TEST(BandsDesign, WhatCannotBeIsRefused) {
  const SyntheticText text(testing::synthetic_shape(), 100, 7);
  const Calibration calibration = text.calibration();
  for (const char* recipe : {"bands:rope=post", "bands:calib=online,certify=on",
                             "bands:calib=online,rope=post", "bands:ends=int8,certify=on"}) {
    const auto prepared = prepare(text.shape(), Recipe::parse(recipe).value(), &calibration);
    ASSERT_FALSE(prepared) << recipe;
    EXPECT_NE(prepared.error().message.find("allowed"), std::string::npos)
        << prepared.error().message;
  }
  const auto without = prepare(text.shape(), Recipe::parse("bands").value(), nullptr);
  ASSERT_FALSE(without);
  EXPECT_NE(without.error().message.find("calibration"), std::string::npos);
}

}  // namespace
}  // namespace kvspan
