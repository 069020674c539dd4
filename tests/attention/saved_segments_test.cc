// SPDX-License-Identifier: Apache-2.0
// Attention over a list that was saved and loaded gives the same bits as over the list itself.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/attention/random_case.h"
#include "tests/cache/framed_list.h"

namespace kvspan {
namespace {

TEST(SavedSegments, AttentionOverWhatWasLoadedGivesTheSameBits) {
  constexpr std::uint64_t kFirstSeed = 9000, kCases = 150;
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kCases; ++seed) {
    const testing::RandomCase c = testing::random_case(seed, {});
    const auto loaded = testing::load_framed(testing::save_framed(c.list), c.list.shape(), nullptr);
    ASSERT_TRUE(loaded) << "seed " << seed << ": " << loaded.error().message;
    const testing::Attended before = testing::attend(c.problem, c.list, 1);
    const testing::Attended after = testing::attend(c.problem, *loaded, 2);
    ASSERT_EQ(before.out.size(), after.out.size());
    ASSERT_EQ(0, std::memcmp(before.out.data(), after.out.data(),
                             before.out.size() * sizeof(before.out[0])))
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvspan
