// SPDX-License-Identifier: Apache-2.0
// What a prompt gets from a store that answers, is late, hangs or fails, and how often it waits.
#include "store/store_reader.h"

#include <gtest/gtest.h>

#include <condition_variable>

#include "store/memory_blobs.h"
#include "tests/method/synthetic.h"

namespace kvspan::testing {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

const StoreIdentity kReaderIdentity{"model", "full", "", "tenant"};

std::vector<std::int32_t> text_of(std::int32_t n) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < n; ++i) tokens.push_back(i * 7 % 500);
  return tokens;
}

// Entries in memory behind a gate: while it is shut a get() does not return.
class GatedBlobs final : public Blobs {
 public:
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = true, fails = false;
    int waiting = 0;  // gets before the gate

    void set(bool opens, bool fail = false) {
      const std::lock_guard lock(mutex);
      open = opens;
      fails = fail;
      changed.notify_all();
    }
    // Until a get() stands before it.
    void wait() {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return waiting > 0; });
    }
  };
  explicit GatedBlobs(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  std::string describe() const override { return inner_.describe(); }
  Result<std::vector<std::optional<std::vector<std::byte>>>> get(std::span<const std::string> keys,
                                                                 std::size_t most_bytes) override {
    std::unique_lock lock(gate_->mutex);
    ++gate_->waiting;
    gate_->changed.notify_all();
    gate_->changed.wait(lock, [&] { return gate_->open; });
    --gate_->waiting;
    if (gate_->fails) return Error{ErrorCode::kIo, "is away"};
    return inner_.get(keys, most_bytes);
  }
  Result<std::vector<bool>> has(std::span<const std::string> keys) override { return inner_.has(keys); }
  Status put(std::span<const BlobView> blobs) override { return inner_.put(blobs); }
  void remove(std::span<const std::string> keys) override { inner_.remove(keys); }
  std::uint64_t bytes() const override { return inner_.bytes(); }

 private:
  std::shared_ptr<Gate> gate_;
  MemoryBlobs inner_{std::uint64_t{1} << 28};
};

class StoreReaderTest : public ::testing::Test {
 protected:
  StoreReaderTest() : store_(std::make_unique<GatedBlobs>(gate_), kReaderIdentity) {
    const auto cache = factory_.make();
    const SyntheticText rows(shape_, kTokens, 1);
    run(*cache, rows, 0, kTokens, kTokens);
    EXPECT_TRUE(store_.put(text_of(kTokens), 1, save_with_runs(*cache).value()));
  }
  std::optional<StoreReader::Found> ask_until_found(StoreReader& reader) {
    while (true) {
      if (auto found = reader.look_up(text_of(kTokens), 0, factory_)) return found;
      std::this_thread::yield();
    }
  }

  static constexpr std::int32_t kTokens = 600;
  const CacheShape shape_ = synthetic_shape();
  const CacheFactory factory_ = CacheFactory::create(shape_, "full").value();
  std::shared_ptr<GatedBlobs::Gate> gate_ = std::make_shared<GatedBlobs::Gate>();
  PrefixStore store_;
};

TEST_F(StoreReaderTest, GivesTheCacheOfAStoreThatAnswers) {
  StoreReader reader(store_, hours(1));
  const auto found = reader.look_up(text_of(kTokens), 0, factory_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->cache->tokens(), kTokens);
  EXPECT_EQ(found->chain, chain_keys(store_.identity(), text_of(kTokens)));
  EXPECT_FALSE(reader.look_up(text_of(kTokens), 512, factory_)) << "nothing beyond";
  EXPECT_EQ(store_.statistics().late, 0u);
}

TEST_F(StoreReaderTest, WaitsOnceForAStoreThatHangs) {
  StoreReader reader(store_, milliseconds(20));
  gate_->set(false);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(reader.look_up(text_of(kTokens), 0, factory_));
    if (i == 0) gate_->wait();
  }
  StoreStatistics numbers = store_.statistics();
  EXPECT_EQ(numbers.late, 1u);
  EXPECT_EQ(numbers.skipped, 99u);
  gate_->set(true);
  // What came too late is the answer to a prompt that goes on from the same tokens.
  const auto longer = ask_until_found(reader);
  EXPECT_EQ(longer->cache->tokens(), kTokens);
}

TEST_F(StoreReaderTest, WhatCameTooLateIsNotForAnotherText) {
  StoreReader reader(store_, milliseconds(20));
  gate_->set(false);
  EXPECT_FALSE(reader.look_up(text_of(kTokens), 0, factory_));
  gate_->wait();
  gate_->set(true);
  std::vector<std::int32_t> other = text_of(kTokens);
  other.front() = 499;
  for (int i = 0; i < 200; ++i) {
    EXPECT_FALSE(reader.look_up(other, 0, factory_));
    std::this_thread::yield();
  }
}

TEST_F(StoreReaderTest, DoesNotWaitForAStoreThatFailed) {
  StoreReader reader(store_, hours(1));
  gate_->set(true, true);
  EXPECT_FALSE(reader.look_up(text_of(kTokens), 0, factory_));
  gate_->set(false, true);
  // With an hour's patience this would never return.
  EXPECT_FALSE(reader.look_up(text_of(kTokens), 0, factory_));
  EXPECT_EQ(store_.statistics().skipped, 1u);
  EXPECT_EQ(store_.statistics().late, 0u);
  gate_->set(true);
  EXPECT_TRUE(ask_until_found(reader));
  // Trusted again: this one waits until the answer is there.
  EXPECT_TRUE(ask_until_found(reader));
}

}  // namespace
}  // namespace kvspan::testing
