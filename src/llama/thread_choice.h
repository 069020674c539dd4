// SPDX-License-Identifier: Apache-2.0
// How many threads the next pass shall use. Threads of a pass wait for each other hundreds of times
// and spin meanwhile, which is fastest while each has a processor of its own. Where other programs
// take some of these away, a thread that waits burns the time that the missing one needs, and a
// step takes a turn of the scheduler for every wait. One thread waits for nobody. The sign is a
// thread that the system took off its processor though it wanted to run (an involuntary switch); on
// an idle machine there is hardly one. Not thread-safe.
#pragma once

#include <cstdint>

namespace kvspan {

// What the process used, so far.
struct ProcessTimes {
  double wall_s = 0.0;
  double cpu_s = 0.0;
  std::int64_t switches = 0;  // involuntary

  ProcessTimes operator-(const ProcessTimes& earlier) const noexcept {
    return {wall_s - earlier.wall_s, cpu_s - earlier.cpu_s, switches - earlier.switches};
  }
};
ProcessTimes process_times();
using ProcessClock = ProcessTimes (*)();

class ThreadChoice {
 public:
  // `loading`: what loading the model used, by which a machine that is busy is known beforehand.
  ThreadChoice(int most, const ProcessTimes& loading);

  int threads() const noexcept { return alone_ ? 1 : most_; }
  // After a pass with that many threads: what it used, and the time when it ended.
  void saw(const ProcessTimes& used, double now_s) noexcept;

 private:
  void go_alone(double started_s, double now_s) noexcept;

  int most_;
  bool alone_;
  double calm_since_s_ = 0.0;  // while alone
  std::int64_t switches_ = 0;  // since then
  double patience_s_ = 0.1;    // that it has to be calm before all threads are tried again
  double together_s_ = 0.0;    // since all threads are tried
};

}  // namespace kvspan
