// SPDX-License-Identifier: Apache-2.0
#include "linalg/subspaces.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "linalg/finite.h"
#include "linalg/qr.h"
#include "tests/linalg/test_matrices.h"

namespace kvspan {
namespace {

// Two planes in 4 dimensions with known angles a and b, turned together by a random rotation.
std::pair<Matrix, Matrix> planes(double a, double b, std::uint64_t seed) {
  const Matrix Q = *orthonormal_rows(gaussian(4, 4, seed).view());
  Matrix first(2, 4), second(2, 4);
  for (std::size_t j = 0; j < 4; ++j) {
    first(0, j) = Q(0, j);
    first(1, j) = Q(1, j);
    second(0, j) = static_cast<float>(std::cos(a) * Q(0, j) + std::sin(a) * Q(2, j));
    second(1, j) = static_cast<float>(std::cos(b) * Q(1, j) + std::sin(b) * Q(3, j));
  }
  return {first, second};
}

TEST(PrincipalAngles, AreTheKnownOnesFromTinyToRight) {
  constexpr double kRight = std::numbers::pi / 2;
  const std::pair<double, double> cases[] = {{0.0, 0.0},  {1e-6, 1e-3},   {1e-5, 0.3},
                                             {0.2, 0.78}, {0.79, kRight}, {kRight, kRight}};
  for (const auto& [a, b] : cases) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const auto [first, second] = planes(a, b, seed);
      const auto angles = principal_angles(first.view(), second.view());
      ASSERT_EQ(angles.size(), 2u);
      // Entries are rounded to f32, which turns a vector by at most 2^-24 each way.
      EXPECT_NEAR(angles[0], a, 4e-7);
      EXPECT_NEAR(angles[1], b, 4e-7);
      const double overlap = 0.5 * (std::cos(a) * std::cos(a) + std::cos(b) * std::cos(b));
      EXPECT_NEAR(subspace_overlap(first.view(), second.view()), overlap, 4e-7);
    }
  }
}

TEST(PrincipalAngles, OfASubspaceWithinAnotherAreZeroEitherWayRound) {
  const Matrix B = *orthonormal_rows(gaussian(9, 30, 3).view());
  const auto down = principal_angles(B.view(), B.top(4));
  const auto up = principal_angles(B.top(4), B.view());
  ASSERT_EQ(down.size(), 4u);
  EXPECT_EQ(down, up);
  EXPECT_LT(down.back(), 1e-6);
  EXPECT_NEAR(subspace_overlap(B.top(4), B.view()), 1.0, 4e-7);
}

TEST(OrthonormalityDefect, IsTheLargestEntryOfTheDifference) {
  Matrix B = *orthonormal_rows(gaussian(5, 12, 4).view());
  EXPECT_LE(orthonormality_defect(B.view()), 2e-7);
  for (std::size_t j = 0; j < 12; ++j) B(3, j) *= 1.01f;
  EXPECT_NEAR(orthonormality_defect(B.view()), 0.0201, 1e-6);
}

TEST(CheckFinite, NamesTheFirstEntryAndReadsStridedViews) {
  Matrix A = gaussian(6, 8, 5);
  EXPECT_TRUE(check_finite(A.view(), "test"));
  A(5, 7) = std::nanf("");
  const Status status = check_finite(A.view(), "keys");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message.substr(0, 5), "keys:");
  EXPECT_NE(status.error().message.find("row 5, column 7"), std::string::npos);
  EXPECT_TRUE(check_finite(MatrixView(A.data(), {6, 7}, {8, 1}), "without the last column"));
  A(0, 0) = 3e38f;
  A(0, 1) = 3e38f;
  EXPECT_TRUE(check_finite(A.top(1), "large but finite"));
}

}  // namespace
}  // namespace kvspan
