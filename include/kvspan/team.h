// SPDX-License-Identifier: Apache-2.0
// Threads that execute one call together: kvspan's pool, ggml's threads or the caller. Every member
// makes the same calls in the same order; between two barriers members take numbered items with take().
// The assignment of items to threads is undefined. For results that do not depend on the number of
// threads, each item writes only to its own place.
#pragma once

#include <atomic>

namespace kvspan {

class HelpWanted;  // internal

// State shared by the members of a team; outlives all of them. Reusable for any number of calls.
class TeamState {
 public:
  TeamState() = default;
  TeamState(const TeamState&) = delete;
  TeamState& operator=(const TeamState&) = delete;

 private:
  friend class Team;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> generation_{0};
  alignas(64) std::atomic<int> next_item_{0};
};

// One member's handle; cheap to copy, used by one thread.
class Team {
 public:
  Team(TeamState& state, int index, int size) : Team(state, index, size, nullptr) {}
  // help: lets another thread take items of this team; null: none can.
  Team(TeamState& state, int index, int size, HelpWanted* help)
      : state_(&state), help_(help), index_(index), size_(size) {}

  int index() const noexcept { return index_; }
  int size() const noexcept { return size_; }
  bool leader() const noexcept { return index_ == 0; }

  // Maximum number of concurrent threads, each with its own place: size(), plus a helper.
  int places() const noexcept { return size_ + (help_ != nullptr ? 1 : 0); }
  HelpWanted* help() const noexcept { return help_; }

  // Returns when all members have called it; their earlier writes are visible afterwards. Resets the
  // item count.
  void barrier() noexcept;
  // The same; meanwhile it calls idle(), which returns whether it found work. Never sleeps, since work
  // may appear at any time.
  template <class Idle>
  void barrier(Idle&& idle) {
    const unsigned generation = generation_now();
    if (arrive()) return;
    for (int spins = 0; generation_now() == generation;) {
      if (!idle()) wait(spins);
    }
  }

  // The next free item since the last barrier: 0, 1, 2, ... without end.
  int take() noexcept { return state_->next_item_.fetch_add(1, std::memory_order_relaxed); }

 private:
  unsigned generation_now() const noexcept {
    return state_->generation_.load(std::memory_order_acquire);
  }
  // Whether this is the last member to arrive.
  bool arrive() noexcept;
  static void wait(int& spins) noexcept;

  TeamState* state_;
  HelpWanted* help_;
  int index_;
  int size_;
};

}  // namespace kvspan
