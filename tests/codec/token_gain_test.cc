// SPDX-License-Identifier: Apache-2.0
#include "codec/token_gain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"

namespace kvspan {
namespace {

// The error that the rule takes gains to leave.
double error_of(const GainRule& rule, const std::vector<float>& c, double gain) {
  double sum = gain * gain * double{rule.fine};
  for (std::size_t i = 0; i < c.size(); ++i) {
    const double beyond = std::abs(double{c[i]}) - gain * double{rule.reach[i]};
    if (beyond > 0.0) sum += beyond * beyond;
  }
  return sum;
}

struct Numbers {
  explicit Numbers(std::size_t n, std::uint64_t seed) : random(seed), inverse(n), reach(n), c(n) {
    for (std::size_t i = 0; i < n; ++i) {
      const double sigma = std::exp(random.normal());
      inverse[i] = static_cast<float>(1.0 / sigma);
      reach[i] = static_cast<float>((1.0 + 3.0 * random.uniform()) * sigma);
      rule.fine += 0.005f * reach[i] * reach[i];
    }
    rule.places = static_cast<std::int32_t>(n);
    rule.stored = static_cast<float>(n);
    rule.inverse_sigma = inverse.data();
    rule.reach = reach.data();
  }
  // Of one loudness, a share of them far out.
  void draw(double share, double far) {
    const double loudness = std::exp(2.0 * random.normal());
    for (std::size_t i = 0; i < c.size(); ++i) {
      const double x = random.normal() * (random.uniform() < share ? far : 1.0);
      c[i] = static_cast<float>(loudness * x / double{inverse[i]});
    }
  }
  double rms() const {
    double sum = 0.0;
    for (std::size_t i = 0; i < c.size(); ++i) sum += std::pow(double{c[i]} * double{inverse[i]}, 2.0);
    return std::sqrt(sum / double(c.size()));
  }

  Random random;
  std::vector<float> inverse, reach, c;
  GainRule rule;
};

// No gain from the root mean square on leaves much less error, and where that is the best one it is met.
TEST(TokenGain, LeavesTheLeastError) {
  Numbers numbers(96, 1);
  int raised = 0;
  for (int trial = 0; trial < 200; ++trial) {
    numbers.draw(0.03, 1.0 + 0.1 * trial);
    const double rms = numbers.rms(), gain = double{numbers.rule.gain_of(numbers.c.data())};
    ASSERT_GE(gain, rms * (1 - 1e-5));
    double least = error_of(numbers.rule, numbers.c, rms);
    for (double g = rms; g < 64.0 * rms; g *= 1.01) least = std::min(least, error_of(numbers.rule, numbers.c, g));
    EXPECT_LE(error_of(numbers.rule, numbers.c, gain), 1.05 * least) << trial;
    raised += gain > 1.05 * rms ? 1 : 0;
  }
  EXPECT_GT(raised, 20);
  EXPECT_LT(raised, 190);
}

TEST(TokenGain, IsTheRootMeanSquareWhereNothingIsCutOff) {
  Numbers numbers(64, 2);
  for (float& reach : numbers.reach) reach *= 100.0f;
  numbers.draw(0.0, 1.0);
  EXPECT_NEAR(double{numbers.rule.gain_of(numbers.c.data())} / numbers.rms(), 1.0, 1e-6);
  std::fill(numbers.c.begin(), numbers.c.end(), 0.0f);
  EXPECT_EQ(numbers.rule.gain_of(numbers.c.data()), 0.0f);
}

// Empty places have no say.
TEST(TokenGain, PaddingChangesNothing) {
  Numbers numbers(64, 3);
  numbers.draw(0.1, 8.0);
  const float gain = numbers.rule.gain_of(numbers.c.data());
  for (auto* part : {&numbers.inverse, &numbers.reach, &numbers.c}) part->resize(68, 0.0f);
  numbers.rule.places = 68;
  numbers.rule.inverse_sigma = numbers.inverse.data();
  numbers.rule.reach = numbers.reach.data();
  EXPECT_EQ(numbers.rule.gain_of(numbers.c.data()), gain);
}

}  // namespace
}  // namespace kvspan
