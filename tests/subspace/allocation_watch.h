// SPDX-License-Identifier: Apache-2.0
// The largest single allocation by operator new since the watch began, so that a test can see what
// a loader asked for even if it gave it back.
#pragma once

#include <cstddef>

namespace kvspan {

void begin_allocation_watch() noexcept;
std::size_t largest_allocation() noexcept;

}  // namespace kvspan
