// SPDX-License-Identifier: Apache-2.0
// Looks for caches in a store on a thread of its own. The store may be away, slow or hostile, so a
// prompt waits for it only for a moment. A lookup that is late, or that the store does not answer,
// costs this moment once: until the store has answered in time again, prompts do not wait.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kvspan/cache.h"
#include "store/prefix_store.h"

namespace kvspan {

class StoreReader {
 public:
  struct Found {
    std::unique_ptr<KvCache> cache;
    std::vector<std::string> chain;  // keys of all its blocks
  };

  // The store outlives the reader. `patience`: how long a prompt waits.
  StoreReader(PrefixStore& store, std::chrono::milliseconds patience);
  // Waits for the lookup that is going on.
  ~StoreReader();
  StoreReader(const StoreReader&) = delete;
  StoreReader& operator=(const StoreReader&) = delete;

  // The cache that shares most blocks with `tokens`, and more than `beyond` tokens of them, loaded by
  // `factory`. What comes too late for one call is the answer to the next one whose tokens begin
  // with the same. One thread calls.
  std::optional<Found> look_up(std::span<const std::int32_t> tokens, std::int32_t beyond,
                               const CacheFactory& factory);

 private:
  struct Job {
    std::vector<std::int32_t> tokens;
    std::int32_t beyond = 0;
    CacheFactory factory;
  };
  void work();
  std::optional<Found> find(const Job& job) const;

  PrefixStore& store_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Job> job_;  // to be done
  bool busy_ = false;       // from the call on until it is done
  bool in_time_ = true;     // the last one was, and the store answered
  bool ends_ = false;
  std::vector<std::int32_t> asked_;  // tokens of the last one
  std::optional<Found> found_;       // by it, and not taken yet
  std::thread thread_;
};

}  // namespace kvspan
