// SPDX-License-Identifier: Apache-2.0
// Random sequences of append, truncate, clear and fork against plain arrays.
#include "cache/segments/segment_list.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "tests/base/sweep.h"

namespace kvspan {
namespace segment_list_test {

constexpr std::int32_t kHeads = 2, kKeyDim = 20, kValueDim = 8;

// What the list must hold: for each token its position and a number from which its rows are made.
struct Token {
  std::int32_t position;
  float value;
};
float key_of(const Token& token, int head, int i) {
  return token.value + float(head) * 0.25f + float(i) * 0.5f;
}

void append(SegmentList& list, std::vector<Token>& model, Random& random, int count, bool gaps) {
  std::vector<float> keys, values;
  std::vector<std::int32_t> positions;
  std::int32_t next = list.next_position();
  for (int t = 0; t < count; ++t) {
    if (gaps) next += std::int32_t(random.below(3));
    const Token token{next++, float(random.below(1000))};
    positions.push_back(token.position);
    model.push_back(token);
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < kKeyDim; ++i) keys.push_back(key_of(token, h, i));
      for (int i = 0; i < kValueDim; ++i) values.push_back(-key_of(token, h, i));
    }
  }
  const auto n = std::size_t(count);
  const TensorView<const float, 3> k(keys.data(), {n, kHeads, kKeyDim});
  const TensorView<const float, 3> v(values.data(), {n, kHeads, kValueDim});
  const std::int32_t first = list.tokens();
  list.extend(positions);
  const auto cut = std::int32_t(random.below(std::uint32_t(count) + 1));
  for (int h = 0; h < kHeads; ++h) {
    list.write(first, k, v, h, cut, count);
    list.write(first, k, v, h, 0, cut);
  }
}

float element(const RowsView& rows, int token, int i) {
  const RowsView row = rows.from(token);
  return row.element == Element::kF32 ? reinterpret_cast<const float*>(row.data)[i]
                                      : to_float(reinterpret_cast<const Half*>(row.data)[i]);
}

float stored(const RowsView& rows, float x) {
  return rows.element == Element::kF32 ? x : to_float(to_half(x));
}

void expect_equal(const SegmentList& list, const std::vector<Token>& model) {
  ASSERT_EQ(list.tokens(), std::int32_t(model.size()));
  ASSERT_EQ(list.next_position(), model.empty() ? 0 : model.back().position + 1);
  std::size_t t = 0;
  for (const Segment& segment : list.segments()) {
    ASSERT_GT(segment.tokens(), 0);
    ASSERT_LE(segment.tokens(), segment.capacity);
    for (std::int32_t j = 0; j < segment.tokens(); ++j, ++t) {
      ASSERT_EQ(segment.positions.at(j), model[t].position);
      for (int h = 0; h < kHeads; ++h) {
        const RowsView k = segment.keys.head(h), v = segment.values.head(h);
        // Millions of elements: one assertion for each would take most of the time.
        bool same = true;
        for (int i = 0; i < kKeyDim; ++i) {
          same &= element(k, j, i) == stored(k, key_of(model[t], h, i));
        }
        for (int i = kKeyDim; i < k.stride; ++i) same &= element(k, j, i) == 0.0f;
        for (int i = 0; i < kValueDim; ++i) {
          same &= element(v, j, i) == stored(v, -key_of(model[t], h, i));
        }
        ASSERT_TRUE(same) << "token " << t << ", head " << h;
      }
    }
  }
  ASSERT_EQ(t, model.size());
}

TEST(SegmentList, HoldsWhatWasAppendedThroughForksTruncationAndClearing) {
  for (const Element element : {Element::kF16, Element::kF32}) {
    for (std::uint64_t seed = 1; seed <= (testing::kSanitized ? 5 : 20); ++seed) {
      SCOPED_TRACE(seed);
      Random random(seed);
      auto ledger = std::make_shared<Ledger>();
      std::vector<SegmentList> lists(1, SegmentList({kHeads, kKeyDim, kValueDim, element}, ledger));
      std::vector<std::vector<Token>> models(1);
      for (int step = 0; step < 60; ++step) {
        const auto i = random.below(std::uint32_t(lists.size()));
        switch (random.below(12)) {
          case 0:
            if (lists.size() < 5) {
              lists.push_back(SegmentList(lists[i]));
              models.push_back(std::vector<Token>(models[i]));
            }
            break;
          case 1: {
            const auto position =
                std::int32_t(random.below(std::uint32_t(lists[i].next_position() + 3)));
            lists[i].truncate(position);
            while (!models[i].empty() && models[i].back().position >= position) {
              models[i].pop_back();
            }
            break;
          }
          case 2:
            if (random.below(4) == 0) {
              lists[i].clear();
              models[i].clear();
            }
            break;
          default:
            append(lists[i], models[i], random, int(random.below(90)), random.below(3) == 0);
        }
        for (std::size_t j = 0; j < lists.size(); ++j) expect_equal(lists[j], models[j]);
      }
      // Memory that forks share is counted once by the ledger, and all of it is returned.
      std::size_t reachable = 0;
      for (const SegmentList& list : lists)
        reachable += list.full_rank_bytes() + list.position_bytes();
      EXPECT_LE(ledger->total(), reachable);
      lists.erase(lists.begin() + 1, lists.end());
      EXPECT_EQ(ledger->bytes(MemoryKind::kFullRank), lists[0].full_rank_bytes());
      EXPECT_EQ(ledger->bytes(MemoryKind::kPositions), lists[0].position_bytes());
      lists.clear();
      EXPECT_EQ(ledger->total(), 0u);
    }
  }
}

TEST(SegmentList, BytesFollowTheCapacitySchedule) {
  auto ledger = std::make_shared<Ledger>();
  SegmentList list({3, 64, 64, Element::kF16}, ledger);
  std::size_t expected = 0;
  std::int32_t capacity = 0;
  for (std::int32_t t = 0; t < 1500; ++t) {
    if (t == capacity) {
      const std::int32_t more = std::min(256, std::max(32, t));
      capacity += more;
      expected += std::size_t(more) * 3 * 128 * 2;
    }
    list.extend(std::vector<std::int32_t>{t});
    ASSERT_EQ(list.full_rank_bytes(), expected) << t;
    ASSERT_EQ(ledger->total(), expected);
  }
}

TEST(SegmentList, SegmentBoundariesDoNotDependOnHowTokensWereAppended) {
  const auto boundaries = [](const SegmentList& list) {
    std::vector<std::int32_t> sizes;
    for (const Segment& segment : list.segments()) sizes.push_back(segment.tokens());
    return sizes;
  };
  std::vector<std::int32_t> positions(1000);
  for (std::int32_t t = 0; t < 1000; ++t) positions[std::size_t(t)] = t;
  SegmentList at_once({1, 8, 8, Element::kF16}, nullptr);
  at_once.extend(positions);
  Random random(3);
  for (int trial = 0; trial < 20; ++trial) {
    SegmentList split({1, 8, 8, Element::kF16}, nullptr);
    while (split.tokens() < 1000) {
      const auto from = std::size_t(split.tokens());
      const auto n = std::min(1000 - from, std::size_t(1 + random.below(200)));
      split.extend(std::span(positions).subspan(from, n));
      if (random.below(4) == 0) split.truncate(std::int32_t(random.below(1000)));
    }
    EXPECT_EQ(boundaries(split), boundaries(at_once));
  }
}

}  // namespace segment_list_test
}  // namespace kvspan
