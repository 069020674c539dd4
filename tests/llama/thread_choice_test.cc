// SPDX-License-Identifier: Apache-2.0
// When passes go alone, and when they come together again, by a clock of the test's own.
#include "llama/thread_choice.h"

#include <gtest/gtest.h>

namespace kvspan {
namespace {

constexpr ProcessTimes kCalmLoad{0.5, 0.5, 1};
constexpr ProcessTimes kBusyLoad{0.5, 0.3, 60};

struct Machine {
  ThreadChoice choice;
  double now_s = 100.0;

  // Passes of `wall_s`, in which threads got this share of their time, for `seconds`; the threads of the next one.
  int run(double seconds, double wall_s, double share, std::int64_t switches) {
    for (const double end = now_s + seconds; now_s < end;) {
      now_s += wall_s;
      choice.saw({wall_s, share * wall_s * choice.threads(), switches}, now_s);
    }
    return choice.threads();
  }
};

TEST(ThreadChoice, AnIdleMachineKeepsAllThreads) {
  Machine machine{{4, kCalmLoad}};
  EXPECT_EQ(machine.choice.threads(), 4);
  EXPECT_EQ(machine.run(10.0, 0.006, 0.97, 0), 4);
  // A switch now and then is no crowd, nor is waiting without one.
  machine.run(0.006, 0.006, 0.97, 1);
  machine.run(1.0, 0.006, 0.4, 0);
  EXPECT_EQ(machine.run(1.0, 0.2, 0.97, 3), 4);
}

TEST(ThreadChoice, ABusyMachineIsKnownFromLoadingAndFromAPass) {
  EXPECT_EQ(ThreadChoice(2, kBusyLoad).threads(), 1);
  Machine machine{{2, kCalmLoad}};
  machine.choice.saw({2.0, 2.0, 500}, 100.0);
  EXPECT_EQ(machine.choice.threads(), 1);
  // As long as threads are switched, it stays so.
  EXPECT_EQ(machine.run(60.0, 0.02, 0.6, 3), 1);
}

TEST(ThreadChoice, AllThreadsComeBackWhenItIsCalm) {
  Machine machine{{2, kBusyLoad}};
  EXPECT_EQ(machine.run(1.0, 0.01, 0.7, 1), 1);
  EXPECT_EQ(machine.run(0.5, 0.01, 1.0, 0), 2);
}

// Passes of seconds, in which a machine without other programs does something of its own.
TEST(ThreadChoice, LongPassesNeedNotBeFreeOfSwitches) {
  Machine machine{{2, kBusyLoad}};
  EXPECT_EQ(machine.run(4.0, 4.0, 1.0, 6), 2);
  EXPECT_EQ(machine.run(4.0, 4.0, 0.6, 1000), 1);
  EXPECT_EQ(machine.run(2.0, 2.0, 0.6, 500), 1);
}

// One busy program beside two cores: alone all looks calm, together it is not.
TEST(ThreadChoice, TryingInVainHappensEverMoreSeldom) {
  for (const double pass : {0.1, 2.0}) {  // seconds, of all threads
    ThreadChoice choice(2, kCalmLoad);
    double now = 100.0;
    int tries = 0;
    while (now < 160.0) {
      if (choice.threads() == 2) {
        ++tries;
        now += pass;
        choice.saw({pass, 1.3 * pass, static_cast<std::int64_t>(200.0 * pass)}, now);
      } else {
        now += 0.01;
        choice.saw({0.01, 0.01, 0}, now);
      }
    }
    EXPECT_LE(tries, 14) << pass;
    EXPECT_GE(tries, 8) << pass;
  }
}

TEST(ThreadChoice, OneThreadStaysOne) {
  Machine machine{{1, kBusyLoad}};
  EXPECT_EQ(machine.run(1.0, 0.01, 0.3, 5), 1);
}

TEST(ThreadChoice, TimesOfTheProcessGrow) {
  const ProcessTimes before = process_times();
  volatile double work = 0.0;
  for (int i = 0; i < 1000000; ++i) work = work + i;
  const ProcessTimes after = process_times();
  EXPECT_GT(after.wall_s, before.wall_s);
  EXPECT_GT(after.cpu_s, before.cpu_s);
  EXPECT_GE(after.switches, before.switches);
}

}  // namespace
}  // namespace kvspan
