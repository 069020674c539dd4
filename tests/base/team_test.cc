// SPDX-License-Identifier: Apache-2.0
#include "kvspan/team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "base/thread_pool.h"

namespace kvspan {
namespace {

class TeamOf : public ::testing::TestWithParam<int> {};

TEST_P(TeamOf, EveryItemIsTakenExactlyOnceInEveryPhase) {
  ThreadPool pool(GetParam());
  constexpr int kItems = 101, kPhases = 50;
  std::vector<std::atomic<int>> taken(kItems * kPhases);
  pool.run([&](Team& team) {
    for (int phase = 0; phase < kPhases; ++phase) {
      for (int i; (i = team.take()) < kItems;) taken[phase * kItems + i]++;
      team.barrier();
    }
  });
  for (const auto& count : taken) EXPECT_EQ(count, 1);
}

TEST_P(TeamOf, WritesBeforeABarrierAreSeenAfterIt) {
  ThreadPool pool(GetParam());
  std::vector<int> cells(GetParam(), 0);
  std::atomic<int> wrong{0};
  pool.run([&](Team& team) {
    for (int round = 1; round < 200; ++round) {
      cells[team.index()] = round;
      team.barrier();
      for (const int cell : cells) wrong += cell != round;
      team.barrier();
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_P(TeamOf, AJobMayEndWithoutABarrier) {
  ThreadPool pool(GetParam());
  for (int run = 0; run < 20; ++run) {
    std::atomic<int> sum{0};
    pool.run([&](Team& team) {
      for (int i; (i = team.take()) < 10;) sum += i;
    });
    EXPECT_EQ(sum, 45);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, TeamOf, ::testing::Values(1, 2, 3, 7));

}  // namespace
}  // namespace kvspan
