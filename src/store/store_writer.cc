// SPDX-License-Identifier: Apache-2.0
#include "store/store_writer.h"

#include <new>
#include <utility>

namespace kvspan {

StoreWriter::StoreWriter(PrefixStore& store, std::size_t most_waiting_bytes)
    : store_(store), most_bytes_(most_waiting_bytes), thread_([this] { work(); }) {}

StoreWriter::~StoreWriter() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StoreWriter::put(std::vector<std::int32_t> tokens, std::int32_t least_tokens,
                      SavedCache saved) {
  const std::size_t bytes = saved.bytes.size();
  {
    const std::lock_guard lock(mutex_);
    // One cache may always wait, however large.
    if (waiting_bytes_ > 0 && waiting_bytes_ + bytes > most_bytes_) {
      store_.count_dropped();
      return;
    }
    waiting_bytes_ += bytes;
    jobs_.push_back({std::move(tokens), least_tokens, std::move(saved)});
  }
  changed_.notify_all();
}

void StoreWriter::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return jobs_.empty() && !busy_; });
}

void StoreWriter::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !jobs_.empty(); });
    if (ends_) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.unlock();
    try {
      // The store counts its failures; nobody waits for this one.
      (void)store_.put(job.tokens, job.least_tokens, job.saved);
    } catch (const std::bad_alloc&) {
      store_.count_dropped();
    }
    lock.lock();
    waiting_bytes_ -= job.saved.bytes.size();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace kvspan
