// SPDX-License-Identifier: Apache-2.0
// The threads that execute one call together, whoever owns them (kvspan's pool, ggml, the caller).
// Every member of the team makes the same calls in the same order; between two barriers the members
// share out numbered items with take(). Which thread takes which item is not defined, so code whose
// result must not depend on the number of threads lets each item write to its own place only.
#pragma once

#include <atomic>

namespace kvspan {

class HelpWanted;  // the library's own

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
  // help: asked where the team's calls can be helped; null where nobody could.
  Team(TeamState& state, int index, int size, HelpWanted* help)
      : state_(&state), help_(help), index_(index), size_(size) {}

  int index() const noexcept { return index_; }
  int size() const noexcept { return size_; }
  bool leader() const noexcept { return index_ == 0; }

  // Threads that may work at the same time, each at its own place: size(), and a helper.
  int places() const noexcept { return size_ + (help_ != nullptr ? 1 : 0); }
  HelpWanted* help() const noexcept { return help_; }

  // Returns when all members have called it; what they wrote before is visible after. Starts the
  // item count anew.
  void barrier() noexcept;
  // The same; until then it calls idle(), which tells whether it found something to do. Does not
  // sleep, since there may be something to do at any time.
  template <class Idle>
  void barrier(Idle&& idle) {
    const unsigned generation = generation_now();
    if (arrive()) return;
    for (int spins = 0; generation_now() == generation;) {
      if (!idle()) wait(spins);
    }
  }

  // The next item nobody has taken since the last barrier: 0, 1, 2, ... without end.
  int take() noexcept { return state_->next_item_.fetch_add(1, std::memory_order_relaxed); }

 private:
  unsigned generation_now() const noexcept {
    return state_->generation_.load(std::memory_order_acquire);
  }
  // Whether this is the last member, for whom nobody waits.
  bool arrive() noexcept;
  static void wait(int& spins) noexcept;

  TeamState* state_;
  HelpWanted* help_;
  int index_;
  int size_;
};

}  // namespace kvspan
