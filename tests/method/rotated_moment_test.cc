// SPDX-License-Identifier: Apache-2.0
#include "method/calibrated/rotated_moment.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"
#include "cache/rope.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

// Against rotating every vector by every offset, in plain loops.
TEST(RotatedMoment, EqualsTheMomentOfRotatedVectors) {
  Random random(5);
  for (const Rope::Pairs pairs : {Rope::Pairs::kNeighbours, Rope::Pairs::kHalves}) {
    for (const std::int32_t rotated : {0, 8, 12}) {
      const std::int32_t heads = 2, dim = 12;
      Rope rope;
      rope.pairs = pairs;
      rope.rotated_dims = rotated;
      for (std::int32_t i = 0; i < rotated / 2; ++i) rope.angles.push_back(std::pow(0.3, i));
      const std::size_t D = 2 * 12 + 5;  // two heads, and five numbers that stay
      const std::vector<std::int32_t> offsets = anchored_offsets(16);
      MatrixD before(D, D), after(D, D);
      std::vector<float> x(D), y(D);
      for (int sample = 0; sample < 40; ++sample) {
        for (float& v : x) v = static_cast<float>(random.normal());
        for (std::size_t i = 0; i < D; ++i) {
          for (std::size_t j = 0; j < D; ++j) before(i, j) += double{x[i]} * x[j];
        }
        for (const std::int32_t offset : offsets) {
          y = x;
          for (std::int32_t h = 0; h < heads; ++h) rope_offset(rope, offset, y.data() + h * dim);
          for (std::size_t i = 0; i < D; ++i) {
            for (std::size_t j = 0; j < D; ++j) {
              after(i, j) += double{y[i]} * y[j] / static_cast<double>(offsets.size());
            }
          }
        }
      }
      average_rotations(rope, heads, dim, offsets, before);
      for (std::size_t i = 0; i < D; ++i) {
        for (std::size_t j = 0; j < D; ++j) {
          // Rotations in f32: 40 samples of products of size 1.
          EXPECT_NEAR(before(i, j), after(i, j), 1e-4) << i << ' ' << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvspan
