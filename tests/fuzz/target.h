// SPDX-License-Identifier: Apache-2.0
// What is fuzzed: one part of kvspan that takes bytes from outside, or the calls of a cache. The same
// targets run in libFuzzer programs (libfuzzer_main.cc) and, on the inputs that were kept, in the tests
// (replay_test.cc).
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvspan::fuzz {

using Bytes = std::vector<std::uint8_t>;

struct Target {
  std::string_view name;  // of its program, fuzz_NAME, and of its corpus
  std::string_view what;  // one line for people
  std::size_t longest;    // bytes of an input
  // Runs kvspan on an input; throws Broken where a promise does not hold. Returns whether the input was
  // accepted, that is, got past the parser.
  bool (*run)(std::span<const std::uint8_t> input);
  // Inputs to begin with, made by the code as it is now.
  std::vector<Bytes> (*seeds)();
};

// A promise of kvspan that did not hold.
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Values>
void must(bool holds, fmt::format_string<Values...> what, Values&&... values) {
  if (!holds) throw Broken(fmt::format(what, std::forward<Values>(values)...));
}

std::span<const Target* const> all_targets();

}  // namespace kvspan::fuzz
