// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/interrupt.h"

#include <csignal>
#include <initializer_list>

namespace kvspan::cli {
namespace {

std::atomic<bool> flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

void set_flag(int) {
  flag.store(true, std::memory_order_relaxed);
}

}  // namespace

void catch_interrupts(Interrupts mode) {
  struct sigaction action {};
  action.sa_handler = set_flag;
  sigemptyset(&action.sa_mask);
  action.sa_flags = mode == Interrupts::kOnce ? SA_RESETHAND : 0;
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

std::atomic<bool>& interrupted() noexcept {
  return flag;
}

}  // namespace kvspan::cli
