// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include "base/expect.h"

namespace kvspan {

ThreadPool::ThreadPool(int threads) {
  KVSPAN_EXPECT(threads >= 1, "a pool has at least the calling thread");
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (...) {
    join();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  join();
}

void ThreadPool::join() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(const std::function<void(Team&)>& job) {
  {
    const std::lock_guard lock(mutex_);
    job_ = &job;
    running_ = size() - 1;
    ++generation_;
  }
  wake_.notify_all();
  Team team(state_, 0, size());
  job(team);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return running_ == 0; });
  // A job may end in take() without a barrier: the next one counts from 0 all the same.
  Team fresh(state_, 0, 1);
  fresh.barrier();
}

void ThreadPool::work(int index) {
  unsigned seen = 0;
  for (;;) {
    const std::function<void(Team&)>* job = nullptr;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      job = job_;
    }
    Team team(state_, index, size());
    (*job)(team);
    {
      const std::lock_guard lock(mutex_);
      --running_;
    }
    done_.notify_one();
  }
}

}  // namespace kvspan
