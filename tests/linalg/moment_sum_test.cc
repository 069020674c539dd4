// SPDX-License-Identifier: Apache-2.0
// Sums of outer products against plain loops; splitting rows changes no bit.
#include "linalg/moment_sum.h"

#include <gtest/gtest.h>

#include <random>

namespace kvspan::testing {
namespace {

detail::Panel random_rows(std::size_t rows, std::size_t width, std::size_t first) {
  detail::Panel panel(rows, spread_columns(first + detail::padded(width)));
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0.5);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < width; ++j) panel(i, first + j) = normal(random);
  }
  return panel;
}

void add_all(MomentSum& sum, const detail::Panel& rows, std::size_t first, std::size_t begin,
             std::size_t end) {
  for (std::size_t strip = 0; strip < sum.strips(); ++strip)
    sum.add(strip, rows, first, begin, end);
}

TEST(MomentSum, EqualsPlainLoops) {
  for (const std::size_t width : {1, 7, 8, 16, 20, 65}) {
    for (const std::size_t first : {0, 24}) {
      const std::size_t count = 300;
      const detail::Panel rows = random_rows(count, width, first);
      MomentSum sum(width);
      add_all(sum, rows, first, 0, count);
      const auto moment = sum.moment(count), mean = sum.mean(count);
      for (std::size_t i = 0; i < width; ++i) {
        double total = 0.0;
        for (std::size_t t = 0; t < count; ++t) total += rows(t, first + i);
        // Numbers of size 1 summed in f64 and rounded once to f32: 2^-24 of about 1.
        EXPECT_NEAR(mean[i], total / count, 1e-7);
        for (std::size_t j = 0; j < width; ++j) {
          double product = 0.0;
          for (std::size_t t = 0; t < count; ++t)
            product += rows(t, first + i) * rows(t, first + j);
          EXPECT_NEAR(moment[i * width + j], product / count, 2e-7)
              << width << ", " << i << ", " << j;
        }
      }
    }
  }
}

TEST(MomentSum, DoesNotDependOnHowRowsAreSplit) {
  const std::size_t width = 40, count = 391;
  const detail::Panel rows = random_rows(count, width, 0);
  MomentSum whole(width), parts(width);
  add_all(whole, rows, 0, 0, count);
  for (const auto& [begin, end] : {std::pair{0, 1}, {1, 130}, {130, 257}, {257, 391}}) {
    add_all(parts, rows, 0, static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
  }
  EXPECT_EQ(whole.moment(1.0), parts.moment(1.0));
  EXPECT_EQ(whole.mean(1.0), parts.mean(1.0));
}

TEST(MomentSum, PanelsHaveAnOddNumberOfCacheLines) {
  for (std::size_t columns = 1; columns < 100; ++columns) {
    EXPECT_GE(spread_columns(columns), columns);
    EXPECT_EQ(spread_columns(columns) / detail::kPanelAlign % 2, 1u);
    EXPECT_EQ(spread_columns(columns) % detail::kPanelAlign, 0u);
  }
}

}  // namespace
}  // namespace kvspan::testing
