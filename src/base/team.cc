// SPDX-License-Identifier: Apache-2.0
#include "kvspan/team.h"

#include <thread>

#include "base/help_wanted.h"

namespace kvspan {

namespace {

// Waits are microseconds when every member has a core. Where cores are fewer, or others are busy on
// them, whoever spins on takes the time of the member that it waits for.
constexpr int kSpins = 4096;

void relax() noexcept {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#elif defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void wait_a_little(int& spins) noexcept {
  if (++spins >= kSpins) return std::this_thread::yield();
  relax();
}

}  // namespace

void Team::wait(int& spins) noexcept {
  wait_a_little(spins);
}

bool Team::arrive() noexcept {
  if (state_->arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) return false;
  state_->next_item_.store(0, std::memory_order_relaxed);
  state_->arrived_.store(0, std::memory_order_relaxed);
  state_->generation_.fetch_add(1, std::memory_order_release);
  state_->generation_.notify_all();
  return true;
}

void Team::barrier() noexcept {
  const unsigned generation = generation_now();
  if (arrive()) return;
  for (int spins = 0; generation_now() == generation; ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      state_->generation_.wait(generation, std::memory_order_acquire);
    }
  }
}

bool HelpWanted::help() {
  if (offer_.load() == nullptr || helped_.exchange(true)) return false;
  const Offer* const offer = offer_.load();
  if (offer != nullptr) offer->work(offer->context, offer->place);
  helped_.store(false);
  return offer != nullptr;
}

void HelpWanted::close() noexcept {
  offer_.store(nullptr);
  for (int spins = 0; helped_.load();) wait_a_little(spins);
}

}  // namespace kvspan
