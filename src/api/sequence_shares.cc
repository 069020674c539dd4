// SPDX-License-Identifier: Apache-2.0
#include "api/sequence_shares.h"

#include <algorithm>

namespace kvspan {
namespace {

// The least of a round of sequences has this share of the work of the most at least: waiting for
// the last thread then costs about what barriers would.
constexpr double kAlike = 0.75;

// What attention to a sequence takes, roughly.
double work_of(const SequenceShare& rows) {
  const double queries = rows.tokens;
  return queries * (queries + double(rows.cache->tokens()));
}

}  // namespace

std::size_t share_out(std::vector<SequenceShare>& sequences, int threads) {
  const auto round = static_cast<std::size_t>(threads);
  if (round < 2 || sequences.size() < round) return 0;
  std::stable_sort(sequences.begin(), sequences.end(),
                   [](const auto& a, const auto& b) { return work_of(a) > work_of(b); });
  std::vector<SequenceShare> whole, together;
  for (std::size_t i = 0; i < sequences.size();) {
    const std::size_t end = i + round;
    const bool alike =
        end <= sequences.size() && work_of(sequences[end - 1]) >= kAlike * work_of(sequences[i]);
    auto& to = alike ? whole : together;
    for (const std::size_t stop = alike ? end : i + 1; i < stop; ++i) to.push_back(sequences[i]);
  }
  const std::size_t count = whole.size();
  whole.insert(whole.end(), together.begin(), together.end());
  sequences = std::move(whole);
  return count;
}

int taker(std::size_t i, int threads) {
  const auto round = static_cast<std::size_t>(threads), place = i % round;
  return static_cast<int>(i / round % 2 == 0 ? place : round - 1 - place);
}

}  // namespace kvspan
