// SPDX-License-Identifier: Apache-2.0
// Calls of the system that fail in this program (fail_calls.c), and what a failure may not leave behind.
#pragma once

#include <filesystem>
#include <iterator>

// Lets the `at`-th call of the kind from now on fail; 0: none, they are only counted.
extern "C" void kvspan_fail_call(const char* kind, long at);
extern "C" long kvspan_counted_calls(void);

namespace kvspan::testing {

inline std::ptrdiff_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}
inline std::ptrdiff_t open_descriptors() { return entries("/proc/self/fd"); }
inline std::ptrdiff_t threads() { return entries("/proc/self/task"); }

}  // namespace kvspan::testing
