// SPDX-License-Identifier: Apache-2.0
// How long a test sweeps: all of it as released. With sanitizers everything is some ten times
// slower, and they look for what code does to memory, which a share of the trials shows; the
// property itself is held for all of them by the released build. Tests that shrink say so by using
// this. And whether tests run all cases of a large table, or a subset.
#pragma once

#include <cstddef>
#include <cstdlib>

namespace kvspan::testing {

#ifdef KVSPAN_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// So many trials, or a tenth of them.
constexpr std::size_t sweep(std::size_t trials) noexcept {
  return kSanitized ? trials / 10 : trials;
}

// Whether the run is `./test --all`, which sets the variable.
inline bool all_cases() { return std::getenv("KVSPAN_TEST_ALL") != nullptr; }

}  // namespace kvspan::testing
