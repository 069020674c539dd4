// SPDX-License-Identifier: Apache-2.0
#include "eval/perplexity/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "eval/bench/bench.h"

namespace kvspan {
namespace {

TEST(KlDivergence, OfADistributionAndItselfIsZeroWhateverTheOffset) {
  const std::vector<float> a{1.0f, -2.0f, 30.0f, 0.5f};
  std::vector<float> shifted = a;
  for (float& x : shifted) x += 100.0f;
  EXPECT_EQ(kl_divergence(a, a), 0.0);
  EXPECT_NEAR(kl_divergence(a, shifted), 0.0, 1e-12);
}

// KL of two coins: p ln(p/q) + (1-p) ln((1-p)/(1-q)).
TEST(KlDivergence, OfTwoCoinsIsTheFormula) {
  const double p = 0.7, q = 0.4;
  const std::vector<float> a{static_cast<float>(std::log(p / (1 - p))), 0.0f};
  const std::vector<float> b{static_cast<float>(std::log(q / (1 - q))), 0.0f};
  EXPECT_NEAR(kl_divergence(a, b), p * std::log(p / q) + (1 - p) * std::log((1 - p) / (1 - q)),
              1e-6);
}

TEST(KlDivergence, SurvivesHugeLogits) {
  const std::vector<float> a{1e4f, 0.0f}, b{0.0f, 1e4f};
  EXPECT_NEAR(kl_divergence(a, b), 1e4, 1e-3);
  EXPECT_NEAR(log_sum_exp(a), 1e4, 1e-9);
}

TEST(Argmax, IsTheFirstOfEquals) {
  EXPECT_EQ(argmax(std::vector<float>{1.0f, 3.0f, 3.0f}), 1);
}

TEST(Quantile, InterpolatesOrderStatistics) {
  EXPECT_DOUBLE_EQ(median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_DOUBLE_EQ(median({4.0, 1.0, 2.0, 3.0}), 2.5);
  EXPECT_DOUBLE_EQ(quantile({0.0, 10.0}, 0.25), 2.5);
  EXPECT_DOUBLE_EQ(quantile({7.0}, 0.9), 7.0);
}

}  // namespace
}  // namespace kvspan
