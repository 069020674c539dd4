// SPDX-License-Identifier: Apache-2.0
// oscar against numpy written from the paper (fixtures/make_rivals.py).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/method/held_positions.h"
#include "tests/method/rivals.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

TEST(Oscar, GivesBackTheRowsOfThePaper) {
  constexpr std::size_t kDim = testing::Rivals::kDim;
  const testing::Rivals fixture;
  Calibration calibration = testing::SyntheticText(fixture.shape(), 80, 1).calibration();
  calibration.layers[0].query_moment = fixture.of("queries");
  // Of [key ; value] together.
  for (std::size_t i = 0; i < kDim; ++i) {
    for (std::size_t j = 0; j < kDim; ++j) {
      calibration.layers[0].joint_moment[(kDim + i) * 2 * kDim + kDim + j] =
          fixture.of("value_moment")[i * kDim + j];
    }
  }
  for (const char* bits : {"2", "3", "4"}) {
    const std::string recipe = std::string("oscar:sink=0,recent=0,group=16,bits=") + bits;
    MethodCache cache(
        prepare(fixture.shape(), Recipe::parse(recipe).value(), &calibration).value());
    fixture.fill(cache);
    const Group& group = cache.group(0, 0);
    ASSERT_TRUE(group.list().segments().front().coded());
    const RowBlock held = testing::held_rows(group, testing::stores_of(group));
    const std::string name = std::string("oscar/") + bits;
    // Scale and offset are rounded to f16, so that a step moves by some thousandths of itself, and
    // with it, by a whole step, the few numbers that lie between two levels.
    EXPECT_GE(testing::rows_alike(held.keys, fixture.of(name + "/keys"), 0.01), 56) << bits;
    EXPECT_GE(testing::rows_alike(held.values, fixture.of(name + "/values"), 0.01), 56) << bits;
    EXPECT_LE(testing::rows_alike(held.keys, fixture.of("keys"), 0.01), 5) << "it is coded";
  }
  const auto without = prepare(fixture.shape(), Recipe::parse("oscar").value(), nullptr);
  ASSERT_FALSE(without);
  EXPECT_NE(without.error().message.find("needs a calibration"), std::string::npos);
}

}  // namespace
}  // namespace kvspan
