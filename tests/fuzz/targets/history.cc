// SPDX-License-Identifier: Apache-2.0
// Calls of a cache in any order, on any recipe and shape (history/history.h).
#include "tests/fuzz/history/history.h"
#include "tests/fuzz/history/random_history.h"
#include "tests/fuzz/target.h"

namespace kvspan::fuzz {
namespace {

bool run(std::span<const std::uint8_t> bytes) {
  Input input(bytes);
  auto history = History::begin(input);
  if (!history) return false;
  history->run();
  return true;
}

// As many random ones as make 12 that fit.
std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (std::uint64_t seed = 1; all.size() < 12; ++seed) {
    const Bytes bytes = random_history(seed);
    Input input(bytes);
    if (History::begin(input)) all.push_back(bytes);
  }
  return all;
}

}  // namespace

extern const Target history_target{"history", "calls of a cache in any order, on any recipe and shape", kLongestHistory, run, seeds};

}  // namespace kvspan::fuzz
