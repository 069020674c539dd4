// SPDX-License-Identifier: Apache-2.0
// Puts caches into a store behind the back of whoever computes: an answer does not wait for a disk or
// a network. Where more waits than the limit, a cache is left out and counted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "kvspan/saved_cache.h"
#include "store/prefix_store.h"

namespace kvspan {

class StoreWriter {
 public:
  // The store outlives the writer.
  explicit StoreWriter(PrefixStore& store, std::size_t most_waiting_bytes = std::size_t{1} << 28);
  // Finishes what it has begun; what still waits is left out.
  ~StoreWriter();
  StoreWriter(const StoreWriter&) = delete;
  StoreWriter& operator=(const StoreWriter&) = delete;

  void put(std::vector<std::int32_t> tokens, std::int32_t least_tokens, SavedCache saved);
  // Until nothing waits and nothing is being written.
  void wait();

 private:
  struct Job {
    std::vector<std::int32_t> tokens;
    std::int32_t least_tokens = 0;
    SavedCache saved;
  };
  void work();

  PrefixStore& store_;
  const std::size_t most_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::size_t waiting_bytes_ = 0;  // with what is being written
  bool busy_ = false, ends_ = false;
  std::thread thread_;
};

}  // namespace kvspan
