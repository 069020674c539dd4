// SPDX-License-Identifier: Apache-2.0
#include "kvspan/team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/help_wanted.h"
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

// One thread offers items, the others help until it has no more.
TEST_P(TeamOf, HelpersWorkAtTheirPlaceOneAtATimeAndEveryItemIsTakenOnce) {
  ThreadPool pool(GetParam());
  constexpr int kItems = 64, kCalls = 300;
  std::vector<std::atomic<int>> taken(kItems * kCalls);
  std::atomic<int> inside[2] = {}, wrong{0}, helped{0};
  HelpWanted help;
  TeamState alone;
  pool.run([&](Team& team) {
    if (!team.leader()) {
      return team.barrier([&] {
        const bool did = help.help();
        helped += did;
        return did;
      });
    }
    Team one(alone, 0, 1, &help);
    EXPECT_EQ(one.places(), 2);
    for (int call = 0; call < kCalls; ++call) {
      with_help(one, [&](int place) {
        wrong += inside[place]++ != 0;
        for (int i; (i = one.take()) < kItems;) taken[call * kItems + i]++;
        inside[place]--;
      });
      wrong += inside[0] + inside[1] != 0;  // nobody is left when it returns
      one.barrier();
    }
    // Where there are others, one of them helps sooner or later.
    for (bool waits = team.size() > 1; waits && helped == 0; one.barrier()) {
      with_help(one, [&](int) { std::this_thread::yield(); });
    }
    team.barrier();
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(helped > 0, GetParam() > 1);
  for (const auto& count : taken) EXPECT_EQ(count, 1);
}

INSTANTIATE_TEST_SUITE_P(Sizes, TeamOf, ::testing::Values(1, 2, 3, 7));

}  // namespace
}  // namespace kvspan
