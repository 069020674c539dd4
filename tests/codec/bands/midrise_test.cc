// SPDX-License-Identifier: Apache-2.0
#include "codec/bands/midrise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "tests/codec/every_level.h"

namespace kvspan {
namespace {

// Minimum distortion of uniform quantizers of a Gaussian with 2^b levels: J. Max 1960, table II,
// and the specification's D(b).
constexpr double kDistortion[] = {1, .3634, .1188, .03744, .01154, .00349, .00104};
// Optimal steps for 2, 4, 8, 16, 32 levels, from the same table.
constexpr double kStep[] = {0, 1.596, 0.9957, 0.5860, 0.3352, 0.1881};

TEST(Midrise, GaussianOptimumIsThatOfTheLiterature) {
  for (int b = 0; b <= 6; ++b) {
    // Half a unit of the last digit printed.
    EXPECT_NEAR(gaussian_midrise(b).distortion, kDistortion[b], b < 3 ? 5e-5 : 5.5e-6) << b;
  }
  for (int b = 1; b <= 5; ++b) {
    EXPECT_NEAR(gaussian_midrise(b).step, kStep[b], b == 1 ? 5e-4 : 5e-5) << b;
  }
  // The specification rounds D(8) to one digit, .00008; a doubling of the levels gains between the
  // factors 3 and 4 (overload keeps it below 4).
  for (int b = 4; b <= 8; ++b) {
    const double gain = gaussian_midrise(b - 1).distortion / gaussian_midrise(b).distortion;
    EXPECT_GT(gain, 3.0);
    EXPECT_LT(gain, 4.0);
  }
  EXPECT_NEAR(gaussian_midrise(8).distortion, .00008, .00001);
}

std::vector<float> gaussian(Random& random, std::size_t n, double scale) {
  std::vector<float> x(n);
  for (auto& v : x) v = static_cast<float>(scale * random.normal());
  return x;
}

// 200,000 samples: the sampling error of the distortion is about 0.5 % (its relative standard
// deviation is below sqrt(5 / n) for these densities), so 2 % is a wide margin that a wrong
// quantizer would still miss: one level less costs 12 % at 16 levels.
TEST(Midrise, FittedStepsReproduceTheDistortionTableAtAnyScale) {
  Random random(31);
  for (const double scale : {1e-3, 1.0, 1e3}) {
    const auto x = gaussian(random, 200000, scale);
    for (int b = 1; b <= 6; ++b) {
      const MidriseFit fit = fit_midrise(x, b);
      EXPECT_NEAR(fit.distortion / (scale * scale), kDistortion[b], 0.02 * kDistortion[b]) << b;
    }
  }
}

TEST(Midrise, NoStepOfAFineGridBeatsTheFittedOne) {
  Random random(32);
  std::vector<float> laplacian(5000), constant(100, -2.5f);
  for (auto& v : laplacian) {
    v = static_cast<float>((random.below(2) ? 1 : -1) * -std::log(1 - random.uniform()));
  }
  for (const auto& values : {gaussian(random, 5000, 1.0), laplacian, constant}) {
    for (int b = 1; b <= 8; ++b) {
      const MidriseFit fit = fit_midrise(values, b);
      double best = std::numeric_limits<double>::infinity(), rms = 0;
      for (const float v : values) rms += double{v} * v / static_cast<double>(values.size());
      rms = std::sqrt(rms);
      for (double range = 0.4; range < 14; range *= 1.01) {
        best = std::min(best, midrise_distortion(values, b, range * rms / std::ldexp(1.0, b - 1)));
      }
      // The sample's distortion is not smooth in the step; 1 % is far below what a bit is worth.
      // The search ends with steps 2e-4 apart, which costs a constant 1e-8 of its square.
      EXPECT_LE(fit.distortion, 1.01 * best + 1e-8 * rms * rms) << b;
    }
  }
}

TEST(Midrise, DegenerateDataHaveADefinedStep) {
  EXPECT_EQ(fit_midrise({}, 3).step, 1.0);
  const std::vector<float> zeros(10, 0.0f), ones(10, 1.0f);
  EXPECT_EQ(fit_midrise(zeros, 3).step, 1.0);
  EXPECT_EQ(fit_midrise(ones, 0).distortion, 1.0);
  EXPECT_LT(fit_midrise(ones, 1).distortion, 1e-6);
}

// Against the definition in double precision, for each component's own step and bits.
TEST(Midrise, CodesAreThoseOfTheDefinition) {
  Random random(33);
  for (const std::size_t n : {1u, 7u, 16u, 31u, 32u, 33u, 100u, 384u}) {
    std::vector<float> steps(n);
    std::vector<std::uint8_t> bits(n);
    for (std::size_t i = 0; i < n; ++i) {
      steps[i] = static_cast<float>(std::ldexp(1.0, static_cast<int>(random.below(20)) - 10));
      bits[i] = static_cast<std::uint8_t>(random.below(9));
    }
    at_every_level([&](CpuLevel) {
      const auto q = MidriseQuantizer::create(steps, bits).value();
      std::vector<float> x(n), back(n);
      for (std::size_t i = 0; i < n; ++i) {
        // Steps are powers of two, so x / step is exact; a third of the numbers lie on a boundary.
        const double units = 20.0 * random.normal();
        x[i] = static_cast<float>(steps[i] * (i % 3 ? units : std::floor(units)));
      }
      std::vector<std::int8_t> codes(n);
      q.encode(x.data(), codes.data());
      q.decode(codes.data(), back.data());
      for (std::size_t i = 0; i < n; ++i) {
        const double half = bits[i] ? std::ldexp(1.0, bits[i] - 1) : 0.0;
        const double level =
            bits[i] ? std::clamp(std::floor(double{x[i]} / steps[i]), -half, half - 1) : 0.0;
        EXPECT_EQ(codes[i], level) << "n " << n << ", i " << i;
        EXPECT_EQ(back[i], bits[i] ? steps[i] * (level + 0.5) : 0.0);
      }
    });
  }
}

TEST(Midrise, FitsEachColumnOfSamplesByItself) {
  Random random(34);
  const std::vector<std::uint8_t> bits{3, 0, 2, 8};
  const double scales[] = {1.0, 5.0, 0.01, 100.0};
  std::vector<float> samples(4000 * 4);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    samples[i] = static_cast<float>(scales[i % 4] * random.normal());
  }
  const auto q = MidriseQuantizer::fit({samples.data(), {4000, 4}}, bits).value();
  EXPECT_EQ(q.steps()[1], 0.0f);
  for (const std::size_t i : {0u, 2u, 3u}) {
    std::vector<float> column;
    for (std::size_t r = 0; r < 4000; ++r) column.push_back(samples[4 * r + i]);
    EXPECT_EQ(q.steps()[i], static_cast<float>(fit_midrise(column, bits[i]).step));
  }
  samples[4 * 17 + 2] = std::numeric_limits<float>::quiet_NaN();
  const auto bad = MidriseQuantizer::fit({samples.data(), {4000, 4}}, bits);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().message, "row 17, column 2: nan is not finite");
}

TEST(Midrise, RefusesStepsAndBitsThatCannotBe) {
  const std::vector<float> steps{1.0f, 0.0f};
  EXPECT_TRUE(MidriseQuantizer::create(steps, std::vector<std::uint8_t>{2, 0}));
  const auto zero = MidriseQuantizer::create(steps, std::vector<std::uint8_t>{2, 1});
  ASSERT_FALSE(zero);
  EXPECT_EQ(zero.error().message, "component 1: step 0; a positive normal number is needed");
  const auto nine = MidriseQuantizer::create(steps, std::vector<std::uint8_t>{9, 0});
  ASSERT_FALSE(nine);
  EXPECT_EQ(nine.error().message, "component 0: 9 bits; allowed are 0 to 8");
}

TEST(LogGain, IsWithinHalfAStepOfTheValue) {
  for (int code = -128; code < 128; ++code) {
    EXPECT_EQ(log_gain_code(log_gain(static_cast<std::int8_t>(code))), code);
  }
  Random random(35);
  for (int i = 0; i < 10000; ++i) {
    const double rms = std::exp2(-15.9 + 31.7 * random.uniform());
    const double ratio = log_gain(log_gain_code(static_cast<float>(rms))) / rms;
    // Half a step is 2^(1/16); f32's logarithm and power add less than 1e-5.
    EXPECT_LE(std::abs(std::log2(ratio)), 1.0 / 16 + 1e-5);
  }
  EXPECT_EQ(log_gain_code(0.0f), -128);
  EXPECT_EQ(log_gain_code(1e30f), 127);
}

}  // namespace
}  // namespace kvspan
