// SPDX-License-Identifier: Apache-2.0
// The threads that execute one call together, whoever owns them (kvspan's pool, ggml, the caller).
// Every member of the team makes the same calls in the same order; between two barriers the members
// share out numbered items with take(). Which thread takes which item is not defined, so code whose
// result must not depend on the number of threads lets each item write to its own place only.
#pragma once

#include <atomic>

namespace kvspan {

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
  Team(TeamState& state, int index, int size) : state_(&state), index_(index), size_(size) {}

  int index() const noexcept { return index_; }
  int size() const noexcept { return size_; }
  bool leader() const noexcept { return index_ == 0; }

  // Returns when all members have called it; what they wrote before is visible after. Starts the
  // item count anew.
  void barrier() noexcept;

  // The next item nobody has taken since the last barrier: 0, 1, 2, ... without end.
  int take() noexcept { return state_->next_item_.fetch_add(1, std::memory_order_relaxed); }

 private:
  TeamState* state_;
  int index_;
  int size_;
};

}  // namespace kvspan
