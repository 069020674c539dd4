// SPDX-License-Identifier: Apache-2.0
// A loop of few turns that is gone before the compiler looks at arrays: loops are unrolled too late
// for arrays of vectors to stay in registers.
#pragma once

#include <utility>

namespace kvspan {

// use.template operator()<k>() for k < N. `use` should be inlined always, too.
template <int N, class Use>
[[gnu::always_inline]] inline void unrolled(const Use& use) noexcept {
  [&]<int... k>(std::integer_sequence<int, k...>) __attribute__((always_inline)) {
    (use.template operator()<k>(), ...);
  }
  (std::make_integer_sequence<int, N>{});
}

}  // namespace kvspan
