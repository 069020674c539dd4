// SPDX-License-Identifier: Apache-2.0
// Rotations against the definition in double precision.
#include "cache/rope.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/cache/coded_rows.h"

namespace kvspan {
namespace {

// Element (row, column) of the pair's rotation, from the definition.
std::vector<double> rotated(const Rope& rope, double t, double magnitude,
                            const std::vector<float>& x) {
  std::vector<double> y(x.begin(), x.end());
  const std::size_t pairs = rope.angles.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::size_t a = rope.pairs == Rope::Pairs::kHalves ? i : 2 * i;
    const std::size_t b = rope.pairs == Rope::Pairs::kHalves ? i + pairs : 2 * i + 1;
    const double angle = t * rope.angles[i];
    y[a] = magnitude * (std::cos(angle) * x[a] - std::sin(angle) * x[b]);
    y[b] = magnitude * (std::sin(angle) * x[a] + std::cos(angle) * x[b]);
  }
  return y;
}

struct Case {
  std::int32_t dim, rotated;
  Rope::Pairs pairs;
  float magnitude;
};
const Case kCases[] = {
    {8, 8, Rope::Pairs::kNeighbours, 1.0f},  {64, 64, Rope::Pairs::kHalves, 1.0f},
    {64, 16, Rope::Pairs::kHalves, 1.0f},    {20, 6, Rope::Pairs::kNeighbours, 1.3f},
    {128, 128, Rope::Pairs::kHalves, 1.19f}, {12, 0, Rope::Pairs::kNeighbours, 1.0f}};

TEST(RopeRotation, MatchesTheDefinitionAndUndoesItself) {
  Random random(1);
  for (const Case& c : kCases) {
    const Rope rope = testing::test_rope(c.rotated, c.pairs, c.magnitude);
    for (const std::int32_t t : {0, 1, 7, 8191, 131071}) {
      const auto x = testing::normals(std::size_t(c.dim), random);
      std::vector<float> turned = x;
      rope_rotate(rope, t, turned.data());
      const auto exact = rotated(rope, t, double{c.magnitude}, x);
      // Factors of one rounding each, two products, one sum; numbers below 6 * 1.3 * 2.
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(turned[i], exact[i], 16 * 4 * 0x1p-24);
      rope_unrotate(rope, t, turned.data());
      for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(turned[i], x[i], 16 * 8 * 0x1p-24);
    }
  }
}

TEST(RopeRotation, AnchorAndOffsetTogetherAreThePosition) {
  Random random(2);
  for (const Case& c : kCases) {
    const Rope rope = testing::test_rope(c.rotated, c.pairs, c.magnitude);
    const auto x = testing::normals(std::size_t(c.dim), random);
    std::vector<float> turned = x;
    rope_offset(rope, -13, turned.data());
    rope_rotate(rope, 5000, turned.data());
    const auto exact = rotated(rope, 4987, double{c.magnitude}, x);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(turned[i], exact[i], 16 * 8 * 0x1p-24);
  }
}

TEST(RopeRotation, TransposedTurnMovesTheProductToTheOtherSide) {
  Random random(3);
  for (const Case& c : kCases) {
    const Rope rope = testing::test_rope(c.rotated, c.pairs, c.magnitude);
    const auto q = testing::normals(std::size_t(c.dim), random);
    const auto k = testing::normals(std::size_t(c.dim), random);
    std::vector<float> cosines(std::size_t(c.dim)), sines(std::size_t(c.dim)), turned = q;
    rope_turn(rope, -777, rope.magnitude, cosines.data(), sines.data());
    apply_turn(rope, cosines.data(), sines.data(), turned.data());
    const auto exact = rotated(rope, 777, double{c.magnitude}, k);
    double left = 0.0, right = 0.0;
    for (std::size_t i = 0; i < q.size(); ++i) {
      left += double{q[i]} * exact[i];
      right += double{turned[i]} * double{k[i]};
    }
    EXPECT_NEAR(left, right, 4 * 0x1p-24 * 16 * 16 * c.dim);
  }
}

TEST(RopeRotation, WhatDoesNotFitIsRefused) {
  const Rope good = testing::test_rope(8, Rope::Pairs::kHalves, 1.0f);
  EXPECT_TRUE(check_rope(good, 8).has_value());
  EXPECT_FALSE(check_rope(good, 6).has_value());
  Rope bad = good;
  bad.angles.pop_back();
  EXPECT_FALSE(check_rope(bad, 8).has_value());
  bad = good;
  bad.rotated_dims = 7;
  EXPECT_FALSE(check_rope(bad, 8).has_value());
  bad = good;
  bad.magnitude = 0.0f;
  EXPECT_FALSE(check_rope(bad, 8).has_value());
  bad = good;
  bad.angles[1] = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(check_rope(bad, 8).has_value());
}

}  // namespace
}  // namespace kvspan
