// SPDX-License-Identifier: Apache-2.0
// Slots of recurrent states: whose they are, and when another gets them. Without libllama's memory,
// whose functions do nothing then.
#include "llama/recurrent_slots.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

namespace kvspan::testing {
namespace recurrent_slots_test {

// Counts tokens, which is all that slots look at.
class Counted final : public KvCache {
 public:
  const CacheShape& shape() const noexcept override { return shape_; }
  std::string recipe() const override { return "counted"; }
  std::int32_t tokens() const noexcept override { return count; }
  Status append(int, const KvRows&, Team&) override { return {}; }
  Status attend(int, const Queries&, TensorView<float, 3>, AttentionScratch&, Team&) override {
    return {};
  }
  Status settle(int, Team&) override { return {}; }
  Status truncate(std::int32_t n) override {
    count = n;
    return {};
  }
  std::int32_t least_tokens() const noexcept override { return 1; }
  void clear() override { count = 0; }
  Result<std::unique_ptr<KvCache>> fork() const override {
    auto copy = std::make_unique<Counted>();
    copy->count = count;
    return std::unique_ptr<KvCache>(std::move(copy));
  }
  CacheBytes bytes() const override { return {}; }

  std::int32_t count = 0;

 private:
  CacheShape shape_;
};

// A decode of so many new tokens for each.
Result<std::vector<llama_seq_id>> decode(RecurrentSlots& slots, std::vector<Counted*> batch,
                                         std::int32_t tokens = 3) {
  const std::vector<KvCache*> caches(batch.begin(), batch.end());
  auto sequences = slots.of(caches, nullptr);
  for (std::size_t i = 0; sequences && i < batch.size(); ++i) {
    batch[i]->count += tokens;
    slots.advance((*sequences)[i], *batch[i]);
  }
  return sequences;
}

TEST(RecurrentSlots, NoLiveSequenceLosesItsState) {
  RecurrentSlots slots(3);
  Counted a, b, c, d;
  const auto first = decode(slots, {&a, &b});
  ASSERT_TRUE(first);
  // The batch in hand: a is the longest unused, and stays.
  const auto second = decode(slots, {&c, &b, &a});
  ASSERT_TRUE(second);
  EXPECT_EQ((*second)[2], (*first)[0]);
  EXPECT_EQ((*second)[1], (*first)[1]);
  EXPECT_EQ(std::set<llama_seq_id>(second->begin(), second->end()).size(), 3u);
  // Nor one that is not in the batch.
  const auto none = decode(slots, {&d});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kOutOfBudget);
  EXPECT_NE(none.error().message.find("supported: 3 sequences"), std::string::npos)
      << none.error().message;
  EXPECT_EQ(d.count, 0);
  EXPECT_EQ(decode(slots, {&a, &b, &c}).value(),
            (std::vector{(*second)[2], (*second)[1], (*second)[0]}));
}

TEST(RecurrentSlots, EmptyCachesOfABatchGetASlotEach) {
  RecurrentSlots slots(3);
  Counted a, b, c;
  const auto all = decode(slots, {&a, &b, &c});
  ASSERT_TRUE(all);
  EXPECT_EQ(std::set<llama_seq_id>(all->begin(), all->end()).size(), 3u);
}

TEST(RecurrentSlots, DestroyedClearedAndTruncatedCachesGiveTheirsBack) {
  RecurrentSlots slots(2);
  Counted a, cleared, cut;
  auto destroyed = std::make_unique<Counted>();
  const llama_seq_id kept = decode(slots, {&a}).value().front();
  for (int round = 0; round < 5; ++round) {
    EXPECT_NE(decode(slots, {destroyed.get()}).value().front(), kept);
    destroyed = std::make_unique<Counted>();
  }
  EXPECT_TRUE(decode(slots, {&cleared}));
  cleared.clear();
  EXPECT_TRUE(decode(slots, {&cut}));
  EXPECT_TRUE(cut.truncate(1));
  const auto lost = decode(slots, {&cut});
  ASSERT_FALSE(lost);
  EXPECT_NE(lost.error().message.find("after 1 tokens"), std::string::npos) << lost.error().message;
  EXPECT_TRUE(decode(slots, {&cleared}));
  EXPECT_EQ(decode(slots, {&a}).value().front(), kept);
}

// Another cache at the address of a destroyed one, with as many tokens, has none of its state.
TEST(RecurrentSlots, AnAddressIsNoCache) {
  RecurrentSlots slots(2);
  alignas(Counted) std::byte memory[sizeof(Counted)];
  auto* first = new (memory) Counted;
  ASSERT_TRUE(decode(slots, {first}));
  std::destroy_at(first);
  auto* second = new (memory) Counted;
  second->count = 3;
  EXPECT_FALSE(decode(slots, {second}));
  std::destroy_at(second);
}

TEST(RecurrentSlots, AForkNeedsAFreeSlot) {
  RecurrentSlots slots(2);
  Counted a;
  const llama_seq_id own = decode(slots, {&a}).value().front();
  auto copy = a.fork().value();
  ASSERT_TRUE(slots.fork(a, *copy, nullptr));
  auto* fork = static_cast<Counted*>(copy.get());
  EXPECT_EQ(decode(slots, {fork, &a}).value()[1], own);
  const auto more = a.fork().value();
  EXPECT_FALSE(slots.fork(a, *more, nullptr));
  EXPECT_TRUE(decode(slots, {fork, &a}));
  copy.reset();
  EXPECT_TRUE(slots.fork(a, *more, nullptr));
}

// What a failed decode leaves is of no use, and free.
TEST(RecurrentSlots, ADroppedStateIsGone) {
  RecurrentSlots slots(1);
  Counted a, b;
  slots.drop(decode(slots, {&a}).value().front());
  EXPECT_FALSE(decode(slots, {&a}));
  EXPECT_TRUE(decode(slots, {&b}));
}

}  // namespace recurrent_slots_test
}  // namespace kvspan::testing
