// SPDX-License-Identifier: Apache-2.0
// Intervals against closed forms: a resampled mean of zeros and ones is a binomial share.
#include "eval/bootstrap.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace kvspan::testing {
namespace {

std::vector<Measured> ones(std::size_t count, std::size_t of) {
  std::vector<Measured> rows(of);
  for (std::size_t i = 0; i < count; ++i) rows[i].value = 1.0;
  return rows;
}

// The least k with P(X <= k) >= q for X binomial.
double binomial_quantile(double n, double p, double q) {
  double sum = 0.0;
  for (double k = 0; k <= n; ++k) {
    sum += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) +
                    k * std::log(p) + (n - k) * std::log1p(-p));
    if (sum >= q) return k;
  }
  return n;
}

TEST(Bootstrap, IntervalOfAShareIsBinomial) {
  BootstrapOptions options;
  options.resamples = 20000;
  for (const std::size_t count : {30u, 100u, 170u}) {
    const auto rows = ones(count, 200);
    const Interval found = bootstrap_interval(rows, options);
    // Of 20,000 draws the share below a quantile is known within 3 sqrt(.025 * .975 / 20000) =
    // .0033; two steps of the binomial around its 2.5 % quantile hold at least .006 on either side.
    EXPECT_NEAR(200 * found.low, binomial_quantile(200, count / 200.0, 0.025), 2.0);
    EXPECT_NEAR(200 * found.high, binomial_quantile(200, count / 200.0, 0.975), 2.0);
  }
}

TEST(Bootstrap, IntervalOfAMeanIsNormalForManyRows) {
  Random random(7);
  std::vector<Measured> rows(4000);
  double square = 0.0;
  for (Measured& row : rows) row.value = random.normal();
  const double mean = weighted_mean(rows);
  for (const Measured& row : rows) square += (row.value - mean) * (row.value - mean);
  const double error = std::sqrt(square) / 4000.0;
  const Interval found = bootstrap_interval(rows, {.resamples = 4000});
  // A quantile of 4,000 draws is known within about 4 %: sqrt(.025 * .975 / 4000) / (density at
  // 1.96 = .0584) = .042 standard errors; four of them.
  EXPECT_NEAR((found.low - mean) / error, -1.96, 0.17);
  EXPECT_NEAR((found.high - mean) / error, 1.96, 0.17);
}

TEST(Bootstrap, IsSeeded) {
  const auto rows = ones(37, 91);
  const Interval a = bootstrap_interval(rows, {.seed = 3}),
                 b = bootstrap_interval(rows, {.seed = 3});
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
  Random random(1);
  std::vector<Measured> other(91);
  for (Measured& row : other) row.value = random.normal();
  EXPECT_NE(bootstrap_interval(other, {.seed = 3}).low, bootstrap_interval(other, {.seed = 4}).low);
}

TEST(Bootstrap, WeighsRows) {
  const std::vector<Measured> rows{{1.0, 3.0}, {5.0, 1.0}};
  EXPECT_EQ(weighted_mean(rows), 2.0);
  EXPECT_EQ(weighted_mean({}), 0.0);
  const Interval found = bootstrap_interval(rows, {});
  EXPECT_EQ(found.low, 1.0);  // both draws the first row, which happens in a quarter of them
  EXPECT_EQ(found.high, 5.0);
}

TEST(McNemar, IsTheBinomialTail) {
  EXPECT_NEAR(mcnemar_exact(1, 5), 2.0 * (1 + 6) / 64, 1e-12);
  EXPECT_NEAR(mcnemar_exact(5, 1), 2.0 * (1 + 6) / 64, 1e-12);
  EXPECT_NEAR(mcnemar_exact(0, 10), 2.0 / 1024, 1e-15);
  EXPECT_EQ(mcnemar_exact(4, 4), 1.0);
  EXPECT_EQ(mcnemar_exact(0, 0), 1.0);
}

TEST(PairedDifference, OfARecipeToItselfIsNothing) {
  const auto rows = ones(40, 100);
  const PairedDifference found = paired_difference(rows, rows, {});
  EXPECT_EQ(found.difference, 0.0);
  EXPECT_EQ(found.interval.low, 0.0);
  EXPECT_EQ(found.interval.high, 0.0);
  EXPECT_EQ(found.p, 1.0);
}

TEST(PairedDifference, SeesWhatUnpairedIntervalsCannot) {
  // 100 rows of very different size; the second set is worse by a little on every row.
  Random random(5);
  std::vector<Measured> a(100), b(100);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i].value = 10.0 * random.normal();
    b[i].value = a[i].value + 0.1 + 0.02 * random.normal();
  }
  const PairedDifference found = paired_difference(a, b, {});
  EXPECT_NEAR(found.difference, 0.1, 0.02);
  EXPECT_GT(found.interval.low, 0.08);
  EXPECT_LT(found.interval.high, 0.12);
  EXPECT_LT(found.p, 0.01);
  EXPECT_GT(bootstrap_interval(b, {}).high - bootstrap_interval(b, {}).low, 1.0);
}

TEST(PairedDifference, OfTruthsIsMcNemars) {
  auto a = ones(50, 60), b = a;
  for (std::size_t i = 0; i < 5; ++i) b[i].value = 0.0;
  b[59].value = 1.0;
  EXPECT_NEAR(paired_difference(a, b, {}).p, mcnemar_exact(1, 5), 1e-15);
  EXPECT_NEAR(paired_difference(a, b, {}).difference, -4.0 / 60, 1e-12);
}

}  // namespace
}  // namespace kvspan::testing
