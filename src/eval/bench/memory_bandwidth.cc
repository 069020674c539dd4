// SPDX-License-Identifier: Apache-2.0
#include "eval/bench/memory_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "base/memory_sweep.h"
#include "base/thread_pool.h"

namespace kvspan {

double memory_bytes_per_second(int threads) {
  constexpr std::size_t kWords = std::size_t{256} << 17;
  constexpr int kPasses = 15;
  using Clock = std::chrono::steady_clock;
  const std::vector<std::uint64_t> words(kWords, 1);
  ThreadPool pool(threads);
  std::atomic<std::uint64_t> total{0};
  double least = 1e300;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = Clock::now();
    pool.run([&](Team& team) { total += sweep(words, team); });
    least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count());
  }
  // The sum is looked at, so that nobody leaves the reading out.
  return total == 0 ? 0.0 : static_cast<double>(kWords * sizeof(std::uint64_t)) / least;
}

}  // namespace kvspan
