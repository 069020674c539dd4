// SPDX-License-Identifier: Apache-2.0
#include "cache/positions.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace kvspan {
namespace {

TEST(Positions, ConsecutiveOnesCostNothing) {
  auto ledger = std::make_shared<Ledger>();
  Positions positions;
  for (int i = 0; i < 100; ++i) positions.push(40 + i, 100, ledger);
  EXPECT_EQ(positions.bytes(), 0u);
  EXPECT_EQ(ledger->total(), 0u);
  positions.truncate(10);
  positions.push(200, 100, ledger);
  EXPECT_EQ(positions.bytes(), Buffer::allocated_for(400));
  EXPECT_EQ(ledger->bytes(MemoryKind::kPositions), positions.bytes());
  EXPECT_EQ(positions.at(9), 49);
  EXPECT_EQ(positions.at(10), 200);
}

TEST(Positions, VisibleRangesEqualAScanOfAllTokens) {
  Random random(1);
  for (int trial = 0; trial < 300; ++trial) {
    Positions positions;
    std::vector<std::int32_t> plain;
    const auto count = std::int32_t(random.below(40));
    const auto stride = 1 + random.below(3);
    std::int32_t next = std::int32_t(random.below(10));
    for (std::int32_t i = 0; i < count; ++i) {
      positions.push(next, 40, nullptr);
      plain.push_back(next);
      next += 1 + std::int32_t(random.below(stride));
    }
    for (int query = -1; query < next + 3; ++query) {
      for (const int window : {0, 1, 2, 7, 1000}) {
        const IndexRange range = positions.between(window == 0 ? 0 : query - window + 1, query);
        for (std::int32_t i = 0; i < count; ++i) {
          const std::int32_t p = plain[std::size_t(i)];
          const bool seen = p <= query && (window == 0 || p > query - window);
          ASSERT_EQ(seen, i >= range.begin && i < range.end) << query << " " << window;
        }
      }
    }
  }
}

TEST(Positions, CopiesAreIndependent) {
  auto ledger = std::make_shared<Ledger>();
  Positions a;
  a.push(1, 8, ledger);
  a.push(5, 8, ledger);
  Positions b = a;
  a.push(6, 8, ledger);
  b.push(9, 8, ledger);
  EXPECT_EQ(a.at(2), 6);
  EXPECT_EQ(b.at(2), 9);
}

}  // namespace
}  // namespace kvspan
