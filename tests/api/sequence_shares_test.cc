// SPDX-License-Identifier: Apache-2.0
#include "api/sequence_shares.h"

#include <gtest/gtest.h>

#include <memory>

#include "api/wrapped_cache.h"

namespace kvspan::testing {
namespace {

LayerShape small_layer() {
  LayerShape layer;
  layer.query_heads = layer.kv_heads = 1;
  layer.key_dim = layer.value_dim = 4;
  return layer;
}

class LongCache final : public WrappedCache {
 public:
  explicit LongCache(std::int32_t tokens)
      : WrappedCache(make_cache({{small_layer()}}, "full").value()), tokens_(tokens) {}
  std::int32_t tokens() const noexcept override { return tokens_; }

 private:
  std::int32_t tokens_;
};

class SequenceShares : public ::testing::Test {
 protected:
  // One row each after so many tokens.
  void bring(const std::vector<std::int32_t>& tokens) {
    for (const std::int32_t n : tokens) {
      caches_.push_back(std::make_unique<LongCache>(n));
      sequences_.push_back({caches_.back().get(), 1, sequences_.size()});
    }
  }
  std::vector<std::int32_t> lengths() const {
    std::vector<std::int32_t> tokens;
    for (const auto& rows : sequences_) tokens.push_back(rows.cache->tokens());
    return tokens;
  }
  std::vector<std::unique_ptr<LongCache>> caches_;
  std::vector<SequenceShare> sequences_;
};

using Lengths = std::vector<std::int32_t>;

TEST_F(SequenceShares, AlikeOnesAreTakenWhole) {
  bring({4000, 3900, 4100, 3950});
  EXPECT_EQ(share_out(sequences_, 2), 4u);
  EXPECT_EQ(lengths(), (Lengths{4100, 4000, 3950, 3900}));
}

TEST_F(SequenceShares, WhatIsLeftOverIsShared) {
  bring({4000, 4000, 4000, 4000, 4000});
  EXPECT_EQ(share_out(sequences_, 2), 4u);
  EXPECT_EQ(share_out(sequences_, 3), 3u);
  EXPECT_EQ(share_out(sequences_, 6), 0u);
  EXPECT_EQ(share_out(sequences_, 1), 0u);
}

TEST_F(SequenceShares, ALongOneAmongShortOnesIsShared) {
  bring({100, 8000, 100, 90, 95});
  EXPECT_EQ(share_out(sequences_, 2), 4u);
  EXPECT_EQ(lengths(), (Lengths{100, 100, 95, 90, 8000}));
}

TEST_F(SequenceShares, ManyRowsCountAsMuchWork) {
  bring({500, 500});
  sequences_[1].tokens += 100;
  EXPECT_EQ(share_out(sequences_, 2), 0u);
}

// Whoever has the longest of a round has the shortest of the next.
TEST_F(SequenceShares, EveryThreadTakesOneOfEachRound) {
  for (const int threads : {2, 3, 5}) {
    const auto round = static_cast<std::size_t>(threads);
    for (std::size_t i = 0; i < round; ++i) {
      EXPECT_EQ(taker(i, threads), static_cast<int>(i));
      EXPECT_EQ(taker(round + i, threads), threads - 1 - static_cast<int>(i));
    }
  }
}

}  // namespace
}  // namespace kvspan::testing
