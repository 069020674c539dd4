// SPDX-License-Identifier: Apache-2.0
// Sums of outer products of two kinds of rows against plain loops; splitting rows changes no bit.
#include "linalg/cross_sum.h"

#include <gtest/gtest.h>

#include <random>

#include "linalg/moment_sum.h"

namespace kvspan::testing {
namespace cross_sum_test {

// Of a panel that has been used for wider rows: beyond the padding stands something else than 0.
detail::Panel random_rows(std::size_t rows, std::size_t width, unsigned seed) {
  detail::Panel panel(rows, spread_columns(width + 16));
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0.5);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < panel.stride(); ++j) {
      panel(i, j) = j < width ? normal(random) : j < detail::padded(width) ? 0.0 : 1e9;
    }
  }
  return panel;
}

void add_all(CrossSum& sum, const detail::Panel& left, const detail::Panel& right,
             std::size_t begin, std::size_t end) {
  for (std::size_t strip = 0; strip < sum.strips(); ++strip)
    sum.add(strip, left, right, begin, end);
}

TEST(CrossSum, EqualsPlainLoops) {
  const std::size_t count = 300;
  for (const std::size_t width : {1, 7, 8, 16, 20, 65}) {
    for (const std::size_t other : {1, 8, 12, 40}) {
      const detail::Panel left = random_rows(count, width, 7);
      const detail::Panel right = random_rows(count, other, 8);
      CrossSum sum(width, other);
      add_all(sum, left, right, 0, count);
      const auto moment = sum.moment(count);
      ASSERT_EQ(moment.size(), width * other);
      for (std::size_t i = 0; i < width; ++i) {
        for (std::size_t j = 0; j < other; ++j) {
          double product = 0.0;
          for (std::size_t t = 0; t < count; ++t) product += left(t, i) * right(t, j);
          // Numbers of size 1 summed in f64 and rounded once to f32: 2^-24 of about 1.
          EXPECT_NEAR(moment[i * other + j], product / count, 2e-7)
              << width << " x " << other << ": " << i << ", " << j;
        }
      }
    }
  }
}

TEST(CrossSum, DoesNotDependOnHowRowsAreSplit) {
  const std::size_t width = 40, other = 24, count = 391;
  const detail::Panel left = random_rows(count, width, 7), right = random_rows(count, other, 8);
  CrossSum whole(width, other), parts(width, other);
  add_all(whole, left, right, 0, count);
  for (const auto& [begin, end] : {std::pair{0, 1}, {1, 130}, {130, 257}, {257, 391}}) {
    add_all(parts, left, right, static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
  }
  EXPECT_EQ(whole.moment(1.0), parts.moment(1.0));
}

}  // namespace cross_sum_test
}  // namespace kvspan::testing
