// SPDX-License-Identifier: Apache-2.0
// How many heads share=auto codes together.
#include <gtest/gtest.h>

#include "method/method_cache.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace {

std::vector<std::int32_t> heads_of_groups(const std::string& recipe, std::int32_t kv_heads,
                                          std::int32_t dim) {
  const testing::SyntheticText text(testing::synthetic_shape(1, kv_heads, dim), 300, 3);
  const Calibration calibration = text.calibration();
  const auto prepared = prepare(text.shape(), Recipe::parse(recipe).value(), &calibration);
  EXPECT_TRUE(prepared) << prepared.error().message;
  std::vector<std::int32_t> heads;
  for (const PreparedGroup& group : (*prepared)->layers[0].groups)
    heads.push_back(group.options.heads);
  return heads;
}

using Heads = std::vector<std::int32_t>;

TEST(BandsGroups, AllHeadsWhereTheyAreFewElseGroupsOfOneSize) {
  EXPECT_EQ(heads_of_groups("bands", 3, 64), Heads({3}));
  EXPECT_EQ(heads_of_groups("bands", 1, 256), Heads({1}));
  EXPECT_EQ(heads_of_groups("bands", 4, 128), Heads({2, 2}));
  EXPECT_EQ(heads_of_groups("bands", 3, 128), Heads({1, 1, 1}));  // not two and one
  EXPECT_EQ(heads_of_groups("bands:share=kv", 4, 128), Heads({4}));
  EXPECT_EQ(heads_of_groups("bands:share=kvgroup,heads=3", 4, 64), Heads({3, 1}));
}

}  // namespace
}  // namespace kvspan
