// SPDX-License-Identifier: Apache-2.0
// Ctrl-C as a flag that the engine looks at.
#pragma once

#include <atomic>

namespace kvspan::cli {

enum class Interrupts {
  kOnce,    // the first Ctrl-C sets the flag, a second one ends the program as if uncaught
  kAlways,  // every Ctrl-C sets the flag
};

// Takes effect for the whole program. System calls that wait return early (EINTR).
void catch_interrupts(Interrupts mode);

// Set by Ctrl-C, cleared by whoever has dealt with it.
std::atomic<bool>& interrupted() noexcept;

inline constexpr int kInterruptedExit = 130;  // 128 + SIGINT, as shells report it

}  // namespace kvspan::cli
