// SPDX-License-Identifier: Apache-2.0
// A fixed set of threads that run one job as a Team. The engine uses ggml's threads instead; this
// one serves the library on its own: tests, benchmarks, calibration.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "kvspan/team.h"

namespace kvspan {

class ThreadPool {
 public:
  // `threads` counts the calling thread: 1 starts none. Throws where the system starts no more.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const noexcept { return static_cast<int>(workers_.size()) + 1; }

  // Runs job on every thread, the caller being member 0, and returns when all have finished. One
  // run at a time. The job must not throw.
  void run(const std::function<void(Team&)>& job);

 private:
  void work(int index);
  void join();

  TeamState state_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(Team&)>* job_ = nullptr;
  unsigned generation_ = 0;
  int running_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace kvspan
