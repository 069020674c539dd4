// SPDX-License-Identifier: Apache-2.0
// What a store gives back is what reading the prompt anew would give, in every place, whatever was done
// to its entries.
#include "store/prefix_store.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "store/store_writer.h"
#include "tests/base/sweep.h"
#include "tests/store/fake_cache.h"
#include "tests/store/places.h"

namespace kvspan::testing {
namespace {

const StoreIdentity kIdentity{"model", "full", "", "tenant"};

// Passes everything on and keeps the entries within reach.
class WatchedBlobs final : public Blobs {
 public:
  explicit WatchedBlobs(std::unique_ptr<Blobs> inner) : inner_(std::move(inner)) {}
  std::string describe() const override { return inner_->describe(); }
  Result<std::vector<std::optional<std::vector<std::byte>>>> get(
      std::span<const std::string> keys, std::size_t most_bytes) override {
    return inner_->get(keys, most_bytes);
  }
  Result<std::vector<bool>> has(std::span<const std::string> keys) override {
    return inner_->has(keys);
  }
  Status put(std::span<const BlobView> blobs) override {
    for (const BlobView& blob : blobs) keys_.push_back(blob.key);
    return inner_->put(blobs);
  }
  void remove(std::span<const std::string> keys) override { inner_->remove(keys); }
  std::uint64_t bytes() const override { return inner_->bytes(); }
  const std::vector<std::string>& keys() const { return keys_; }

 private:
  std::unique_ptr<Blobs> inner_;
  std::vector<std::string> keys_;
};

std::vector<std::int32_t> random_text(Random& random, std::size_t n) {
  std::vector<std::int32_t> tokens(n);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random.below(50));
  return tokens;
}

// As a server does it: load, read the rest, put.
FakeCache answer(PrefixStore& store, std::span<const std::int32_t> tokens) {
  FakeCache cache;
  const auto found = store.longest(tokens.first(tokens.size() - 1));
  if (found) {
    const auto loaded = FakeCache::load(found->bytes);
    EXPECT_TRUE(loaded) << "what passes the store's checks is what was put";
    if (loaded) {
      EXPECT_EQ(loaded->tokens(), static_cast<std::size_t>(found->cache_tokens));
      cache = *loaded;
      cache.truncate(static_cast<std::size_t>(found->tokens));
    }
  }
  cache.read(tokens.subspan(cache.tokens()));
  const auto size = static_cast<std::int32_t>(tokens.size());
  if (PrefixStore::worth_putting(size, found ? found->tokens : 0)) {
    (void)store.put(tokens, 1, cache.save());
  }
  return cache;
}

class PrefixStoreTest : public PlaceTest {};
class SharedPrefixStoreTest : public PlaceTest {};  // places that several programs share

TEST_P(PrefixStoreTest, AThousandPromptsWithSharedBeginningsAreAsReadAnew) {
  PrefixStore store(open(), kIdentity);
  Random random(3);
  std::vector<std::vector<std::int32_t>> texts;
  for (int i = 0; i < 5; ++i) texts.push_back(random_text(random, 3000));
  const std::size_t prompts = sweep(1000);
  for (std::size_t i = 0; i < prompts; ++i) {
    const auto& text = texts[random.below(texts.size())];
    std::vector<std::int32_t> prompt(text.begin(),
                                     text.begin() + static_cast<std::ptrdiff_t>(random.below(3000)));
    const std::vector<std::int32_t> tail = random_text(random, 1 + random.below(400));
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    ASSERT_EQ(answer(store, prompt), read_anew(prompt)) << i;
  }
  const StoreStatistics numbers = store.statistics();
  EXPECT_EQ(numbers.hits + numbers.misses, prompts);
  EXPECT_GT(numbers.hits, numbers.misses);
  EXPECT_EQ(numbers.damaged, 0u);
  EXPECT_EQ(numbers.failures, 0u) << numbers.last_failure;
}

TEST_P(PrefixStoreTest, FindsTheLongestBeginningOfTheShortestCache) {
  PrefixStore store(open(), kIdentity);
  Random random(4);
  const std::vector<std::int32_t> text = random_text(random, 2048);
  const auto put = [&](std::size_t n, std::int32_t least) {
    const auto tokens = std::span(text).first(n);
    ASSERT_TRUE(store.put(tokens, least, read_anew(tokens).save()));
  };
  put(2048, 1);
  auto found = store.longest(std::span(text).first(700));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->tokens, 512);
  EXPECT_EQ(found->cache_tokens, 2048);
  EXPECT_EQ(found->chain, chain_keys(store.identity(), text));
  EXPECT_FALSE(store.longest(std::span(text).first(700), 512)) << "nothing beyond these";
  put(1000, 1);
  found = store.longest(std::span(text).first(700));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cache_tokens, 1000);
  put(600, 513);  // no block that it could go back to
  EXPECT_EQ(store.longest(std::span(text).first(700))->cache_tokens, 1000);
  put(768, 768);
  EXPECT_EQ(store.longest(std::span(text).first(700))->cache_tokens, 1000);
  EXPECT_EQ(store.longest(text)->tokens, 2048);
  EXPECT_EQ(store.longest(std::span(text).first(800))->cache_tokens, 768);
  EXPECT_FALSE(store.longest(std::span(text).first(255)));
}

TEST_P(SharedPrefixStoreTest, NothingPassesFromOneIdentityToAnother) {
  Random random(5);
  const std::vector<std::int32_t> text = random_text(random, 600);
  PrefixStore store(open(), kIdentity);
  ASSERT_TRUE(store.put(text, 1, read_anew(text).save()));
  EXPECT_TRUE(store.longest(text));
  PrefixStore again(open(), kIdentity);
  EXPECT_TRUE(again.longest(text)) << "another program with the same identity";
  for (const StoreIdentity& other :
       {StoreIdentity{"other", "full", "", "tenant"}, StoreIdentity{"model", "quant", "", "tenant"},
        StoreIdentity{"model", "full", "c", "tenant"}, StoreIdentity{"model", "full", "", ""},
        StoreIdentity{"model", "full", "", "../tenant"}}) {
    PrefixStore stranger(open(), other);
    EXPECT_FALSE(stranger.longest(text));
  }
}

// Whatever is done to any entry, what comes back is right or nothing; and what was spoilt is written
// again with the next prompt.
TEST_P(PrefixStoreTest, SpoiltEntriesAreMisses) {
  Random random(6);
  const std::vector<std::int32_t> text = random_text(random, 1100);
  const SavedCache right = read_anew(text).save();
  int misses = 0;
  for (std::size_t round = 0; round < sweep(300); ++round) {
    auto watched = std::make_unique<WatchedBlobs>(open());
    WatchedBlobs& blobs = *watched;
    PrefixStore store(std::move(watched), kIdentity);
    ASSERT_TRUE(store.put(text, 1, right));
    const std::vector<std::string> keys = blobs.keys();
    if (round == 0) {
      ASSERT_EQ(keys.size(), 1 + 4 + 1 + 4u);  // rest, blocks, manifest, index
    }
    if (!keys.empty()) {
      const std::string& key = keys[random.below(keys.size())];
      auto bytes = *blobs.get(std::span(&key, 1), kMostBlobBytes).value().front();
      const std::string& other = keys[random.below(keys.size())];
      switch (random.below(5)) {
        case 0:  // one bit
          if (!bytes.empty()) bytes[random.below(bytes.size())] ^= std::byte{1};
          break;
        case 1:  // cut short
          bytes.resize(random.below(bytes.size() + 1));
          break;
        case 2:  // longer
          bytes.resize(bytes.size() + 1 + random.below(100));
          break;
        case 3:  // another entry's
          bytes = *blobs.get(std::span(&other, 1), kMostBlobBytes).value().front();
          break;
        default:  // anything
          for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
      }
      const BlobView spoilt{key, bytes};
      ASSERT_TRUE(blobs.put(std::span(&spoilt, 1)));
    }
    const auto found = store.longest(text);
    if (found) {
      EXPECT_EQ(found->bytes, right.bytes);
      EXPECT_EQ(found->tokens % kBlockTokens, 0);
    } else {
      ++misses;
    }
    ASSERT_TRUE(store.put(text, 1, right));
    const auto mended = store.longest(text);
    ASSERT_TRUE(mended) << round;
    EXPECT_EQ(mended->bytes, right.bytes);
    blobs.remove(keys);
  }
  EXPECT_GT(misses, 0);
}

TEST_P(PrefixStoreTest, WhatDoesNotLoadIsNoHitAndGoes) {
  PrefixStore store(open(), kIdentity);
  Random random(7);
  const std::vector<std::int32_t> text = random_text(random, 600);
  ASSERT_TRUE(store.put(text, 1, read_anew(text).save()));
  const auto found = store.longest(text);
  ASSERT_TRUE(found);
  store.reject(*found);
  EXPECT_FALSE(store.longest(text));
  EXPECT_EQ(store.statistics().hits, 0u);
  EXPECT_EQ(store.statistics().damaged, 1u);
}

TEST_P(PrefixStoreTest, AWriterPutsBehindTheCallersBackAndLeavesOutWhatIsTooMuch) {
  PrefixStore store(open(), kIdentity);
  Random random(8);
  std::vector<std::vector<std::int32_t>> texts;
  for (int i = 0; i < 20; ++i) texts.push_back(random_text(random, 600));
  {
    StoreWriter writer(store, 1);  // one at a time
    for (const auto& text : texts) writer.put(text, 1, read_anew(text).save());
    writer.wait();
  }
  std::uint64_t found = 0;
  for (const auto& text : texts) found += store.longest(text) ? 1 : 0;
  const StoreStatistics numbers = store.statistics();
  EXPECT_GE(found, 1u);
  EXPECT_EQ(found, numbers.saved);
  EXPECT_EQ(numbers.saved + numbers.dropped, texts.size());
}

INSTANTIATE_TEST_SUITE_P(Places, SharedPrefixStoreTest, ::testing::Values("disk", "redis"), place_name);
INSTANTIATE_TEST_SUITE_P(Places, PrefixStoreTest, ::testing::Values("memory", "disk", "redis"),
                         place_name);

TEST(PrefixStore, IsWorthItsEndsWhereMuchIsNew) {
  EXPECT_FALSE(PrefixStore::worth_putting(255, 0));
  EXPECT_TRUE(PrefixStore::worth_putting(256, 0));
  EXPECT_FALSE(PrefixStore::worth_putting(256, 256));
  EXPECT_TRUE(PrefixStore::worth_putting(6000, 0));
  EXPECT_FALSE(PrefixStore::worth_putting(6000, 5888));
  EXPECT_FALSE(PrefixStore::worth_putting(6000, 5120));
  EXPECT_TRUE(PrefixStore::worth_putting(6000, 4864));
}

}  // namespace
}  // namespace kvspan::testing
