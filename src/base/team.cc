// SPDX-License-Identifier: Apache-2.0
#include "kvspan/team.h"

#include <thread>

namespace kvspan {
namespace {

inline void pause_briefly() noexcept {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#elif defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Team::barrier() noexcept {
  const unsigned generation = state_->generation_.load(std::memory_order_relaxed);
  if (state_->arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    state_->next_item_.store(0, std::memory_order_relaxed);
    state_->arrived_.store(0, std::memory_order_relaxed);
    state_->generation_.fetch_add(1, std::memory_order_release);
    return;
  }
  // Waits are microseconds when every member has a core; where cores are fewer, let the others run.
  int spins = 0;
  while (state_->generation_.load(std::memory_order_acquire) == generation) {
    if (++spins < 4096) {
      pause_briefly();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace kvspan
