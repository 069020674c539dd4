// SPDX-License-Identifier: Apache-2.0
#include "llama/thread_choice.h"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>

namespace kvspan {
namespace {

// Between switches of a processor that several threads share lie some milliseconds; ten times as
// long would be a chance visitor.
constexpr double kCrowdedS = 0.03;
// Of what all threads could have used. Threads that spin use all of it on an idle machine; where
// one is missing, at least a quarter is lost, with two threads and one busy program.
constexpr double kShare = 0.8;
constexpr double kLongestPatienceS = 10.0;

double seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Whether threads were taken off their processors again and again.
bool crowded(const ProcessTimes& used) {
  return used.switches >= 2 && used.wall_s < kCrowdedS * static_cast<double>(used.switches);
}

}  // namespace

ProcessTimes process_times() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {seconds(CLOCK_MONOTONIC), seconds(CLOCK_PROCESS_CPUTIME_ID), usage.ru_nivcsw};
}

ThreadChoice::ThreadChoice(int most, const ProcessTimes& loading)
    : most_(most), alone_(most > 1 && crowded(loading)) {}

// After a crowded pass that started then.
void ThreadChoice::go_alone(double started_s, double now_s) noexcept {
  // Tried in vain, or after a good while?
  patience_s_ = started_s - together_s_ < 1.0 ? std::min(2.0 * patience_s_, kLongestPatienceS) : 0.1;
  alone_ = true;
  calm_since_s_ = now_s;
  switches_ = 0;
}

void ThreadChoice::saw(const ProcessTimes& used, double now_s) noexcept {
  if (most_ == 1) return;
  if (alone_) {
    // A long pass has a chance visitor now and then on an idle machine too.
    if (calm_since_s_ == 0.0) calm_since_s_ = now_s - used.wall_s;
    switches_ += used.switches;
    if (crowded({now_s - calm_since_s_, 0.0, switches_})) {
      calm_since_s_ = now_s;
      switches_ = 0;
    }
    if (now_s - calm_since_s_ < patience_s_) return;
    alone_ = false;
    together_s_ = now_s;
    return;
  }
  if (crowded(used) && used.cpu_s < kShare * used.wall_s * most_) go_alone(now_s - used.wall_s, now_s);
}

}  // namespace kvspan
