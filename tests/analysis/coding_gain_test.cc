// SPDX-License-Identifier: Apache-2.0
#include "analysis/coding_gain.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tests/analysis/fixtures/reference.h"
#include "tests/analysis/reference_rows.h"

namespace kvspan::testing {
namespace {

MatrixD diagonal(const std::vector<double>& values) {
  MatrixD C(values.size(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) C(i, i) = values[i];
  return C;
}

// log2 of a determinant moves by n 2^-53 over the least eigenvalue, which the ridge keeps above
// 1e-6 of the mean: 12 * 1e-16 * 1e6 is far below 1e-8.
TEST(CodingGain, AgreesWithNumpyOnRows) {
  const MatrixD C = moment_of(reference_rows(11), /*centred=*/true);
  EXPECT_NEAR(coding_gain(C.view()), kReferenceGainWhole, 1e-8);
  EXPECT_NEAR(coding_gain(C.view(), std::array<std::size_t, 3>{4, 4, 4}), kReferenceGainBlocks,
              1e-8);
}

TEST(CodingGain, IsNothingWhereAllDirectionsAreEqual) {
  EXPECT_NEAR(coding_gain(diagonal({2, 2, 2, 2}).view()), 0.0, 1e-12);
  EXPECT_EQ(coding_gain(diagonal({0, 0}).view()), 0.0);
}

TEST(CodingGain, OfTwoDirectionsByHand) {
  // Means 8.5 and 4: half of log2(2.125), but for the ridge.
  EXPECT_NEAR(coding_gain(diagonal({16, 1}).view()), 0.5 * std::log2(8.5 / 4.0), 1e-5);
}

TEST(CodingGain, JoiningBlocksNeverLoses) {
  for (const std::uint32_t seed : {11u, 23u, 40u}) {
    const MatrixD C = moment_of(reference_rows(seed), true);
    const double apart = coding_gain(C.view(), std::array<std::size_t, 4>{3, 3, 3, 3});
    const double pairs = coding_gain(C.view(), std::array<std::size_t, 2>{6, 6});
    EXPECT_LE(apart, pairs + 1e-12);
    EXPECT_LE(pairs, coding_gain(C.view()) + 1e-12);
  }
}

TEST(CodingGain, ADeadDirectionCostsWhatTheRidgeSays) {
  // Mean 0.5; the dead direction counts as 1e-6 of it.
  EXPECT_NEAR(coding_gain(diagonal({1, 0}).view()),
              0.5 * (std::log2(0.5) - 0.5 * std::log2(1.0 * 0.5 * kGainRidge)), 1e-5);
}

}  // namespace
}  // namespace kvspan::testing
