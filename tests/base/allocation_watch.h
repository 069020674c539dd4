// SPDX-License-Identifier: Apache-2.0
// Watches operator new and delete of a test program, which allocation_watch.cc replaces: bytes that
// are out, the largest request, and failures on demand.
#pragma once

#include <cstddef>

namespace kvspan::testing {

// Bytes that are allocated now. Every Buffer comes from the aligned operator new, with room to
// align it, which does not count; all else from the plain one.
long long buffer_bytes() noexcept;
long long plain_bytes() noexcept;

// The largest request since the watch began, whether it was given back or not.
void begin_allocation_watch() noexcept;
std::size_t largest_allocation() noexcept;

enum class Failing {
  kOnce,      // that one allocation
  kFromThen,  // and all that follow
};
// While it lives, allocation `nth` of this thread, from 0 on, throws std::bad_alloc. One at a time.
class FailingAllocation {
 public:
  FailingAllocation(std::size_t nth, Failing failing) noexcept;
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  FailingAllocation& operator=(const FailingAllocation&) = delete;
  // Whether there were so many allocations.
  bool reached() const noexcept;
};

}  // namespace kvspan::testing
