// SPDX-License-Identifier: Apache-2.0
#include "attention/softmax_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace kvspan {
namespace {

TEST(SoftmaxState, EmptyPartsAreHarmlessOnEitherSide) {
  SoftmaxState some{3.0f, 2.0f}, none;
  const MergeFactors right = merge_into(some, none);
  EXPECT_EQ(right.kept, 1.0f);
  EXPECT_EQ(right.added, 0.0f);
  EXPECT_EQ(some.sum, 2.0f);
  const MergeFactors left = merge_into(none, some);
  EXPECT_EQ(left.kept, 0.0f);
  EXPECT_EQ(left.added, 1.0f);
  EXPECT_EQ(none.max, 3.0f);
  EXPECT_EQ(none.sum, 2.0f);
  SoftmaxState a, b;
  merge_into(a, b);
  EXPECT_EQ(a.sum, 0.0f);
  EXPECT_EQ(a.log_sum_exp(), -std::numeric_limits<float>::infinity());
}

TEST(SoftmaxState, MergesToTheSoftmaxOfAllInAnyOrder) {
  Random random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const double spread = trial % 2 == 0 ? 5.0 : 14427.0;  // up to natural logits of +-1e4
    const std::size_t count = 1 + random.below(20);
    std::vector<SoftmaxState> parts(count);
    std::vector<double> values(count);
    double max = -1e300;
    for (std::size_t i = 0; i < count; ++i) {
      parts[i] = {static_cast<float>(spread * (2 * random.uniform() - 1)),
                  static_cast<float>(1 + 9 * random.uniform())};
      values[i] = random.normal();
      max = std::max(max, double{parts[i].max});
    }
    double sum = 0.0, weighted = 0.0, size = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
      const double weight = std::exp2(double{parts[i].max} - max);
      sum += weight * double{parts[i].sum};
      weighted += weight * values[i];
      size += weight * std::abs(values[i]);
    }
    for (std::size_t i = count; i > 1; --i) {
      const auto j = random.below(std::uint32_t(i));
      std::swap(parts[i - 1], parts[j]);
      std::swap(values[i - 1], values[j]);
    }
    SoftmaxState whole;
    double merged = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
      const MergeFactors factors = merge_into(whole, parts[i]);
      merged = merged * factors.kept + values[i] * factors.added;
    }
    // Each merge rounds a difference of maxima (u of its size, but a weight below 2^-40 is lost in
    // the tolerance anyway, so 40 u counts), an exponential and two sums.
    const double tolerance = 48 * 0x1p-24 * static_cast<double>(count);
    EXPECT_NEAR(whole.log_sum_exp(), std::log(2.0) * (max + std::log2(sum)),
                tolerance + 2 * 0x1p-24 * std::abs(max));
    EXPECT_NEAR(merged, weighted, tolerance * size);
  }
}

}  // namespace
}  // namespace kvspan
