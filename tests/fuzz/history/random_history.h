// SPDX-License-Identifier: Apache-2.0
// Histories by number, for runs without libFuzzer.
#pragma once

#include <cstdint>

#include "base/random.h"
#include "tests/fuzz/target.h"

namespace kvspan::fuzz {

inline constexpr std::size_t kLongestHistory = 400;

inline Bytes random_history(std::uint64_t number) {
  Random random(number);
  Bytes bytes(120 + random.below(kLongestHistory - 120));
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.below(256));
  return bytes;
}

}  // namespace kvspan::fuzz
