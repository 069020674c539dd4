// SPDX-License-Identifier: Apache-2.0
#include "cuda/page_pool.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"

namespace kvspan::cuda::page_pool_test {
namespace {

constexpr std::size_t kUnit = kPageUnit;

TEST(PagePool, AllKindsSpendOneBudget) {
  PagePool pool(12 * kUnit, 6 * kUnit, {3 * kUnit, 2 * kUnit});
  EXPECT_EQ(pool.take(0).value(), 0);
  EXPECT_EQ(pool.take(1).value(), 6);  // the second block
  EXPECT_EQ(pool.take(0).value(), 3);
  EXPECT_EQ(pool.take(1).value(), 8);
  EXPECT_EQ(pool.used_bytes(), 10 * kUnit);
  const auto spent = pool.take(0);
  ASSERT_FALSE(spent);
  EXPECT_EQ(spent.error().code, ErrorCode::kOutOfBudget);
  EXPECT_EQ(pool.take(1).value(), 10);
  EXPECT_FALSE(pool.take(1));
}

TEST(PagePool, PagesComeBackWhenTheLastOwnerLeaves) {
  PagePool pool(2 * kUnit, 2 * kUnit, {kUnit});
  const std::int32_t page = pool.take(0).value();
  pool.share(page);
  EXPECT_TRUE(pool.shared(page));
  pool.give_back(page);
  EXPECT_FALSE(pool.shared(page));
  EXPECT_EQ(pool.pages(0), 1u);
  pool.give_back(page);
  EXPECT_EQ(pool.pages(0), 0u);
  EXPECT_EQ(pool.take(0).value(), page);
}

TEST(PagePool, ABlockWithoutOwnersIsEverybodys) {
  PagePool pool(4 * kUnit, 4 * kUnit, {kUnit, 4 * kUnit});
  const std::int32_t a = pool.take(0).value(), b = pool.take(0).value();
  EXPECT_FALSE(pool.take(1));
  pool.give_back(a);
  EXPECT_FALSE(pool.take(1));
  pool.give_back(b);
  EXPECT_EQ(pool.take(1).value(), 0);
  EXPECT_FALSE(pool.take(0));
}

TEST(PagePool, KindsWithoutPagesHaveNone) {
  PagePool pool(4 * kUnit, kUnit, {0, kUnit});
  EXPECT_FALSE(pool.take(0));
  EXPECT_EQ(pool.used_bytes(), 0u);
  EXPECT_FALSE(PagePool(0, kUnit, {kUnit}).take(0));
}

// Against a list of who has which bytes.
TEST(PagePool, PagesNeverOverlap) {
  const std::vector<std::size_t> sizes = {7 * kUnit, 3 * kUnit, 5 * kUnit, kUnit};
  const std::size_t budget = 200 * kUnit;
  PagePool pool(budget, 15 * kUnit, sizes);
  std::map<std::size_t, std::size_t> bytes;  // of pages, by where they begin
  std::vector<std::int32_t> held;
  std::size_t used = 0, refused = 0;
  Random random(3);
  for (int round = 0; round < 4000; ++round) {
    // More come than go, and now and then nearly all go.
    const bool gives = !held.empty() && (random.below(5) < 2 || round % 500 > 450);
    if (gives) {
      const std::size_t at = random.below(held.size());
      const std::size_t begin = static_cast<std::size_t>(held[at]) * kUnit;
      pool.give_back(held[at]);
      used -= bytes[begin];
      bytes.erase(begin);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      const std::size_t kind = random.below(sizes.size());
      const auto page = pool.take(kind);
      if (!page) {
        ++refused;
        continue;
      }
      const std::size_t begin = static_cast<std::size_t>(*page) * kUnit, end = begin + sizes[kind];
      ASSERT_LE(end, budget);
      const auto after = bytes.lower_bound(begin);
      if (after != bytes.end()) {
        ASSERT_LE(end, after->first) << "round " << round;
      }
      if (after != bytes.begin()) {
        const auto before = std::prev(after);
        ASSERT_LE(before->first + before->second, begin) << "round " << round;
      }
      bytes[begin] = sizes[kind];
      used += sizes[kind];
      held.push_back(*page);
    }
    ASSERT_EQ(pool.used_bytes(), used);
  }
  EXPECT_GT(refused, 100u);  // it was full often
}

// However pages came and went before: all that was counted finds a place.
TEST(PagePool, WhatIsNeededFits) {
  const PageNeed needs[] = {{9 * kUnit, 13}, {2 * kUnit, 70}, {0, 0}, {7 * kUnit, 6}};
  const std::size_t block = best_block_bytes(needs);
  const std::size_t budget = pool_bytes_for(needs, block);
  PagePool pool(budget, block, {9 * kUnit, 2 * kUnit, 0, 7 * kUnit});
  std::vector<std::vector<std::int32_t>> held(4);
  Random random(4);
  for (int round = 0; round < 5000; ++round) {
    const std::size_t kind = random.below(4);
    if (held[kind].size() < needs[kind].pages && random.below(3) > 0) {
      const auto page = pool.take(kind);
      ASSERT_TRUE(page) << "round " << round << ": " << page.error().message;
      held[kind].push_back(*page);
    } else if (!held[kind].empty()) {
      const std::size_t at = random.below(held[kind].size());
      pool.give_back(held[kind][at]);
      held[kind].erase(held[kind].begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
}

TEST(PagePool, BlocksLoseLittle) {
  const auto lost = [](std::span<const PageNeed> needs) {
    std::size_t all = 0;
    for (const PageNeed& need : needs) all += need.page_bytes * need.pages;
    const std::size_t taken = pool_bytes_for(needs, best_block_bytes(needs));
    EXPECT_GE(taken, all);
    return static_cast<double>(taken - all) / static_cast<double>(all);
  };
  // Codes and rows of one class, 64 long sequences of 32 layers: megabytes each.
  const PageNeed many[] = {{18483 * kUnit, 64 * 512}, {32768 * kUnit, 64 * 11}};
  EXPECT_LT(lost(many), 0.02);
  // One sequence of 8,192 tokens, 3 layers without a window and 15 with one.
  const PageNeed few[] = {
      {432 * kUnit, 32}, {768 * kUnit, 11}, {2160 * kUnit, 6}, {3840 * kUnit, 11}};
  EXPECT_LT(lost(few), 0.2);
  const PageNeed one[] = {{0, 0}, {kUnit, 77}};
  EXPECT_EQ(lost(one), 0.0);
}

TEST(PagePool, BlocksFollowTheBudget) {
  const PageNeed needs[] = {{3 * kUnit, 1000000}, {8 * kUnit, 100000}};
  EXPECT_EQ(best_block_bytes(needs, 20 * kUnit), 8 * kUnit);  // one page of each fits
  EXPECT_LE(best_block_bytes(needs, 400 * kUnit), 25 * kUnit);
  EXPECT_EQ(best_block_bytes(needs) % (24 * kUnit), 0u);  // nothing is lost
}

}  // namespace
}  // namespace kvspan::cuda::page_pool_test
