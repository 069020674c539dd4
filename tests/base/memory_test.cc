// SPDX-License-Identifier: Apache-2.0
#include "base/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>  // defines __GLIBC__ where that is the library
#include <utility>
#include <vector>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace kvspan {
namespace {

TEST(Buffer, CountsWhatItAllocatesAndReturnsIt) {
  auto ledger = std::make_shared<Ledger>();
  {
    Buffer a(100, MemoryKind::kFullRank, ledger);
    Buffer b(1, MemoryKind::kScales, ledger);
    EXPECT_EQ(ledger->bytes(MemoryKind::kFullRank), 128u);
    EXPECT_EQ(ledger->total(), 192u);
    Buffer moved = std::move(a);
    EXPECT_EQ(ledger->total(), 192u);
    b = std::move(moved);
    EXPECT_EQ(ledger->bytes(MemoryKind::kScales), 0u);
    EXPECT_EQ(ledger->total(), 128u);
  }
  EXPECT_EQ(ledger->total(), 0u);
}

TEST(Buffer, IsAlignedAndZeroed) {
  for (std::size_t size = 1; size < 300; size += 37) {
    Buffer b(size, MemoryKind::kBases, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % Buffer::kAlignment, 0u);
    for (std::size_t i = 0; i < b.bytes(); ++i) ASSERT_EQ(b.data()[i], std::byte{0});
  }
}

TEST(Buffer, CloneCountsOnItsOwnLedger) {
  auto first = std::make_shared<Ledger>();
  auto second = std::make_shared<Ledger>();
  Buffer a(64, MemoryKind::kCoefficients, first);
  a.as<int>()[3] = 42;
  Buffer b = a.clone(second);
  a.as<int>()[3] = 7;
  EXPECT_EQ(b.as<int>()[3], 42);
  EXPECT_EQ(first->total(), 64u);
  EXPECT_EQ(second->total(), 64u);
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
// Rows come and go while codes stay between them: what is freed must do for the next of its size.
TEST(Buffer, FreedBlocksAreUsedAgain) {
  std::vector<Buffer> stay, go;
  const auto allocate = [](std::vector<Buffer>& to) {
    to.emplace_back(6144, MemoryKind::kFullRank, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(to.back().data()) % Buffer::kAlignment, 0u);
  };
  for (int i = 0; i < 1000; ++i) {
    allocate(stay);
    allocate(go);
  }
  const std::size_t before = mallinfo2().arena;
  for (int round = 0; round < 3; ++round) {
    go.clear();
    for (int i = 0; i < 1000; ++i) allocate(go);
  }
  EXPECT_LE(mallinfo2().arena, before + 64 * 6144);
}
#endif

TEST(Ledger, LeavesSharedCodesOutOfTheTotal) {
  auto ledger = std::make_shared<Ledger>();
  Buffer shared(640, MemoryKind::kShared, ledger);
  EXPECT_EQ(ledger->bytes(MemoryKind::kShared), 640u);
  EXPECT_EQ(ledger->total(), 0u);
}

}  // namespace
}  // namespace kvspan
