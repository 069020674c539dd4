// SPDX-License-Identifier: Apache-2.0
// turbo against numpy written from the paper (fixtures/make_rivals.py).
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/method/held_positions.h"
#include "tests/method/rivals.h"

namespace kvspan {
namespace {

TEST(Turbo, GivesBackTheRowsOfThePaper) {
  const testing::Rivals fixture;
  for (const char* bits : {"2", "3", "4"}) {
    const std::string recipe = std::string("turbo:sink=0,recent=0,bits=") + bits;
    MethodCache cache(prepare(fixture.shape(), Recipe::parse(recipe).value(), nullptr).value());
    fixture.fill(cache);
    const Group& group = cache.group(0, 0);
    ASSERT_TRUE(group.list().segments().front().coded());
    const RowBlock held = testing::held_rows(group, testing::stores_of(group));
    const std::string name = std::string("turbo/") + bits;
    // f32 against f64; a wrong level would move a number by 6e-2.
    testing::expect_rows(held.keys, fixture.of(name + "/keys"), 1e-5);
    testing::expect_rows(held.values, fixture.of(name + "/values"), 1e-5);
  }
}

}  // namespace
}  // namespace kvspan
