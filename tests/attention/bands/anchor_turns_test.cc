// SPDX-License-Identifier: Apache-2.0
#include "attention/bands/anchor_turns.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "cache/rope.h"

namespace kvspan {
namespace {

Rope rope_of(std::size_t pairs, double base) {
  Rope rope;
  rope.rotated_dims = std::int32_t(2 * pairs);
  for (std::size_t i = 0; i < pairs; ++i) {
    rope.angles.push_back(std::pow(base, -double(i) / double(pairs)));
  }
  return rope;
}

// Asked for in any order, of few positions or many, they are what rope_turn gives.
TEST(AnchorTurns, AreThoseOfTheRopeInUse) {
  Random random(31);
  AnchorTurns turns;
  for (int trial = 0; trial < 12; ++trial) {
    const Rope rope = rope_of(1 + random.below(40), trial % 3 == 0 ? 1e4 : 1e6);
    const auto positions = std::uint32_t(trial % 2 == 0 ? 20 : 3 * AnchorTurns::kMost);
    for (int ask = 0; ask < 400; ++ask) {
      turns.use(rope);
      const std::int32_t position = -256 * std::int32_t(random.below(positions));
      const float scale = random.below(4) == 0 ? 0.5f : 1.0f;
      std::vector<float> cosines(rope.angles.size()), sines(rope.angles.size());
      rope_turn(rope, position, scale, cosines.data(), sines.data());
      const AnchorTurns::Turn turn = turns.of(position, scale);
      ASSERT_EQ(std::vector(turn.cosines, turn.cosines + cosines.size()), cosines);
      ASSERT_EQ(std::vector(turn.sines, turn.sines + sines.size()), sines);
    }
  }
}

TEST(AnchorTurns, KeepsATurnWhileFewOthersAreAskedFor) {
  AnchorTurns turns;
  turns.use(rope_of(8, 1e4));
  const float* const first = turns.of(-128, 1.0f).cosines;
  for (std::int32_t i = 1; i < std::int32_t(AnchorTurns::kMost); ++i) turns.of(-128 - i, 1.0f);
  EXPECT_EQ(turns.of(-128, 1.0f).cosines, first);
  EXPECT_EQ(first[0], float(std::cos(128.0)));
}

}  // namespace
}  // namespace kvspan
