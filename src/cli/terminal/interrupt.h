// SPDX-License-Identifier: Apache-2.0
// Ctrl-C, and SIGTERM, as a flag that the engine looks at.
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

// Waits until file descriptor `fd` can be read, or has ended; false where interrupted() is set
// first, whenever the signal came.
bool wait_readable(int fd);

// Whether SIGTERM came: the program shall end, and not just what it is doing.
bool terminated() noexcept;

// 128 + the signal, as shells report it. What was interrupted returns the first; the program makes
// the second of it where that is true.
inline constexpr int kInterruptedExit = 130;
inline constexpr int kTerminatedExit = 143;

}  // namespace kvspan::cli
