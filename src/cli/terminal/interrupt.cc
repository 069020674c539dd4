// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/interrupt.h"

#include <poll.h>

#include <cerrno>
#include <csignal>
#include <initializer_list>

namespace kvspan::cli {
namespace {

std::atomic<bool> flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

std::atomic<bool> asked_to_end{false};

void set_flag(int signal) {
  if (signal == SIGTERM) asked_to_end.store(true, std::memory_order_relaxed);
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

bool wait_readable(int fd) {
  // A signal just before a system call that waits would not wake it: look again now and then.
  constexpr int kGlanceMs = 200;
  for (;;) {
    if (interrupted()) return false;
    pollfd wanted{fd, POLLIN, 0};
    const int ready = poll(&wanted, 1, kGlanceMs);
    if (ready > 0 || (ready < 0 && errno != EINTR)) return true;
  }
}

bool terminated() noexcept {
  return asked_to_end.load(std::memory_order_relaxed);
}

}  // namespace kvspan::cli
