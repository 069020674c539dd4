// SPDX-License-Identifier: Apache-2.0
#include "cache/rows/half_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/cpu_level.h"
#include "base/random.h"

namespace kvspan {
namespace {

// Any finite f16, subnormals and both zeros among them.
Half any_half(Random& random) {
  Half h;
  do h.bits = static_cast<std::uint16_t>(random.bits());
  while ((h.bits & 0x7c00) == 0x7c00);
  return h;
}

TEST(HalfRows, SumsAsInDoubleAtEveryLevel) {
  Random random(31);
  for (int trial = 0; trial < 300; ++trial) {
    const std::size_t n = 4 * (1 + random.below(12)), stride = n + random.below(9);
    const std::size_t rows = 1 + random.below(kHalfRows), count = 1 + random.below(kHalfVectors);
    std::vector<Half> numbers(rows * stride);
    for (Half& h : numbers) h = any_half(random);
    std::vector<float> factors(kHalfVectors * kHalfRows, std::nanf("")), before(count * n + 1);
    for (std::size_t v = 0; v < count; ++v) {
      for (std::size_t r = 0; r < rows; ++r) {
        factors[v * kHalfRows + r] = random.normal() * std::exp2(float(random.below(80)) - 40.0f);
      }
    }
    for (float& x : before) x = random.normal();
    for (const CpuLevel level : available_cpu_levels()) {
      ASSERT_TRUE(force_cpu_level(level));
      std::vector<float> got = before;
      add_half_rows({numbers.data(), stride, rows}, factors.data(), count, n, got.data());
      EXPECT_EQ(got.back(), before.back()) << "beyond the last";
      for (std::size_t at = 0; at < count * n; ++at) {
        double sum = before[at], size = std::abs(sum);
        for (std::size_t r = 0; r < rows; ++r) {
          const double x = double{factors[at / n * kHalfRows + r]} *
                           double{to_float(numbers[r * stride + at % n])};
          sum += x;
          size += std::abs(x);
        }
        // A product and a sum for each row, and the sum that was there: 2^-24 each of what is
        // summed up.
        ASSERT_NEAR(got[at], sum, double(2 * rows + 2) * 0x1p-24 * size) << name_of(level);
      }
    }
  }
  ASSERT_TRUE(force_cpu_level(available_cpu_levels().back()));
}

}  // namespace
}  // namespace kvspan
