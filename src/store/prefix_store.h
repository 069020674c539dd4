// SPDX-License-Identifier: Apache-2.0
// Caches of prompts that were read before, found by the tokens that a new prompt begins with.
// Nothing that comes back is trusted: keys are hashes of what they lead to, and an entry that is
// damaged, cut short, of another model or simply wrong is a miss and is removed. A place that does not
// answer is a miss too. Any thread may call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvspan/result.h"
#include "kvspan/saved_cache.h"
#include "store/blobs.h"
#include "store/saved_pieces.h"
#include "store/store_key.h"

namespace kvspan {

struct StoredPrefix {
  // How many of the tokens asked for the cache begins with, a multiple of 256: a loaded cache is to
  // be truncated to so many.
  std::int32_t tokens = 0;
  std::int32_t cache_tokens = 0;   // of the cache itself
  std::vector<std::string> chain;  // keys of all its blocks (chain_keys)
  std::vector<std::byte> bytes;    // for CacheFactory::load
  std::string manifest;            // key
};

struct StoreStatistics {
  std::uint64_t hits = 0, misses = 0, hit_tokens = 0;
  std::uint64_t saved = 0;                          // caches
  std::uint64_t loaded_bytes = 0, saved_bytes = 0;  // saved: those that were not there yet
  std::uint64_t damaged = 0;   // entries that did not pass a check
  std::uint64_t failures = 0;  // calls that the place of the store did not answer
  std::uint64_t dropped = 0;   // caches not written because too many were waiting (StoreWriter)
  std::uint64_t late = 0;      // lookups that a prompt waited for in vain (StoreReader)
  std::uint64_t skipped = 0;   // lookups that no prompt waited for: the store had been late or away
  std::uint64_t held_bytes = 0;
  double load_ms = 0.0, save_ms = 0.0;  // sums
  std::string last_failure;
};

class PrefixStore {
 public:
  PrefixStore(std::unique_ptr<Blobs> blobs, const StoreIdentity& identity);

  // The cache that shares most blocks with the tokens, and more than `beyond` tokens of them. Where
  // several share the same, the shortest one that was put.
  std::optional<StoredPrefix> longest(std::span<const std::int32_t> tokens, std::int32_t beyond = 0);
  // What longest() gave could not be loaded: it was no hit, and is removed.
  void reject(const StoredPrefix& prefix);

  // Keeps a cache of the tokens that can go back to `least_tokens` and more.
  Status put(std::span<const std::int32_t> tokens, std::int32_t least_tokens,
             const SavedCache& saved);
  // Whether that is worth its bytes, where `found` tokens were there: the ends of a cache, which no
  // other cache shares, weigh as much as a thousand coded tokens.
  static bool worth_putting(std::int32_t tokens, std::int32_t found);

  // Whether the place answered all calls since longest() was last called.
  bool answers() const noexcept { return answers_; }

  StoreStatistics statistics() const;
  void count_dropped();
  void count_late();
  void count_skipped();
  const std::string& identity() const noexcept { return identity_; }
  std::string describe() const { return blobs_->describe(); }

 private:
  enum class Outcome { kFound, kGone, kDamaged, kNoAnswer };  // gone: forgotten in part
  Outcome load(const std::string& chain_key, std::int32_t tokens, const IndexEntry& entry,
               StoredPrefix& prefix);
  std::optional<StoredPrefix> find(std::span<const std::int32_t> tokens, std::int32_t beyond);
  void count_failure(const Error& error);

  const std::unique_ptr<Blobs> blobs_;
  const std::string identity_;
  std::atomic<bool> answers_ = true;
  mutable std::mutex mutex_;  // of the numbers
  StoreStatistics numbers_;
};

}  // namespace kvspan
