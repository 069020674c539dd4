// SPDX-License-Identifier: Apache-2.0
#include "base/spelling.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvspan {
namespace {

TEST(Spelling, DistanceCountsEditsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("rnu", "run"), 1u);
  EXPECT_EQ(edit_distance("smolm2", "smollm2"), 1u);
}

TEST(Spelling, OffersOnlyWhatCouldBeMeant) {
  const std::vector<std::string> names{"smollm2", "gemma3", "stories260k"};
  EXPECT_EQ(nearest("smolm2", names), "smollm2");
  EXPECT_EQ(nearest("gemma", names), "gemma3");
  EXPECT_EQ(nearest("mistral", names), std::nullopt);
  EXPECT_EQ(nearest("", names), std::nullopt);
  EXPECT_EQ(did_you_mean("gema3", names), ", did you mean 'gemma3'?");
  EXPECT_EQ(did_you_mean("xyz", names), "");
}

}  // namespace
}  // namespace kvspan
