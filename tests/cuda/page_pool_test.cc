// SPDX-License-Identifier: Apache-2.0
#include "cuda/page_pool.h"

#include <gtest/gtest.h>

namespace kvspan::cuda {
namespace {

TEST(PagePool, BothKindsSpendOneBudget) {
  PagePool pool(1000, 300, 200);
  EXPECT_EQ(pool.take(PageKind::kCodes).value(), 0);
  EXPECT_EQ(pool.take(PageKind::kCodes).value(), 1);
  EXPECT_EQ(pool.take(PageKind::kRows).value(), 0);
  EXPECT_EQ(pool.free_bytes(PageKind::kCodes), 0u);
  EXPECT_EQ(pool.free_bytes(PageKind::kRows), 200u);
  EXPECT_FALSE(pool.take(PageKind::kCodes));
  EXPECT_EQ(pool.take(PageKind::kRows).value(), 1);
  const auto spent = pool.take(PageKind::kRows);
  ASSERT_FALSE(spent);
  EXPECT_EQ(spent.error().code, ErrorCode::kOutOfBudget);
}

TEST(PagePool, PagesComeBackWhenTheLastOwnerLeaves) {
  PagePool pool(600, 300, 200);
  const std::int32_t page = pool.take(PageKind::kCodes).value();
  pool.share(PageKind::kCodes, page);
  EXPECT_TRUE(pool.shared(PageKind::kCodes, page));
  pool.give_back(PageKind::kCodes, page);
  EXPECT_FALSE(pool.shared(PageKind::kCodes, page));
  EXPECT_EQ(pool.pages(PageKind::kCodes), 1u);
  pool.give_back(PageKind::kCodes, page);
  EXPECT_EQ(pool.pages(PageKind::kCodes), 0u);
  EXPECT_EQ(pool.take(PageKind::kCodes).value(), page);
}

}  // namespace
}  // namespace kvspan::cuda
