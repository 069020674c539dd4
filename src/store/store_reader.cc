// SPDX-License-Identifier: Apache-2.0
#include "store/store_reader.h"

#include <algorithm>
#include <new>
#include <utility>

namespace kvspan {

StoreReader::StoreReader(PrefixStore& store, std::chrono::milliseconds patience)
    : store_(store), patience_(patience), thread_([this] { work(); }) {}

StoreReader::~StoreReader() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::optional<StoreReader::Found> StoreReader::look_up(std::span<const std::int32_t> tokens,
                                                       std::int32_t beyond,
                                                       const CacheFactory& factory) {
  std::unique_lock lock(mutex_);
  if (busy_) {
    store_.count_skipped();
    return std::nullopt;
  }
  const bool continues = tokens.size() >= asked_.size() &&
                         std::equal(asked_.begin(), asked_.end(), tokens.begin());
  if (found_ && continues) return std::exchange(found_, std::nullopt);
  found_.reset();
  asked_.assign(tokens.begin(), tokens.end());
  job_.emplace(asked_, beyond, factory);
  busy_ = true;
  changed_.notify_all();
  if (!in_time_) {
    store_.count_skipped();
    return std::nullopt;
  }
  if (!changed_.wait_for(lock, patience_, [&] { return !busy_; })) {
    store_.count_late();
    return std::nullopt;
  }
  return std::exchange(found_, std::nullopt);
}

std::optional<StoreReader::Found> StoreReader::find(const Job& job) const {
  const std::optional<StoredPrefix> stored = store_.longest(job.tokens, job.beyond);
  if (!stored) return std::nullopt;
  Result<std::unique_ptr<KvCache>> cache = job.factory.load(stored->bytes);
  if (!cache && cache.error().code == ErrorCode::kOutOfBudget) return std::nullopt;
  if (!cache || (*cache)->tokens() != stored->cache_tokens) {
    store_.reject(*stored);
    return std::nullopt;
  }
  return Found{std::move(*cache), stored->chain};
}

void StoreReader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || job_; });
    if (ends_) return;
    const Job job = *std::exchange(job_, std::nullopt);
    lock.unlock();
    const auto start = std::chrono::steady_clock::now();
    std::optional<Found> found;
    try {
      found = find(job);
    } catch (const std::bad_alloc&) {  // as if nothing were there
    }
    const bool in_time = std::chrono::steady_clock::now() - start <= patience_;
    lock.lock();
    found_ = std::move(found);
    in_time_ = in_time && store_.answers();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace kvspan
