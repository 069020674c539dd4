// SPDX-License-Identifier: Apache-2.0
// The threads that execute one call together, whoever owns them (kvspan's pool, ggml, the caller).
// Every member of the team makes the same calls in the same order; between two barriers the members
// share out numbered items with take(). Which thread takes which item is not defined, so code whose
// result must not depend on the number of threads lets each item write to its own place only.
// A thread outside the team that has nothing to do can help with the items: HelpWanted.
#pragma once

#include <atomic>

namespace kvspan {

// Where a team, of one member usually, offers its items to threads that have none. Outlives both.
class HelpWanted {
 public:
  HelpWanted() = default;
  HelpWanted(const HelpWanted&) = delete;
  HelpWanted& operator=(const HelpWanted&) = delete;

  // Works on the items that are offered at the moment, if any are and nobody else helps already.
  // Whether it did.
  bool help();

 private:
  friend class Team;
  struct Offer {
    void (*work)(const void* context, int place);
    const void* context;
    int place;
  };
  void open(const Offer& offer) noexcept { offer_.store(&offer); }
  // Returns when the helper, where there is one, is done.
  void close() noexcept;

  // Both in one order for all threads: who helps says so, then looks for the offer; who closes
  // takes the offer back, then looks for a helper.
  alignas(64) std::atomic<const Offer*> offer_{nullptr};
  std::atomic<bool> helped_{false};
};

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
  // help: asked where the team's calls can be helped; null where nobody could.
  Team(TeamState& state, int index, int size, HelpWanted* help = nullptr)
      : state_(&state), help_(help), index_(index), size_(size) {}

  int index() const noexcept { return index_; }
  int size() const noexcept { return size_; }
  bool leader() const noexcept { return index_ == 0; }

  // Threads that may work at the same time, each at its own place: size(), and a helper.
  int places() const noexcept { return size_ + (help_ != nullptr ? 1 : 0); }

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

  // work(place), which takes items, by every member, and by a helper where there is one. Returns
  // when the caller's and the helper's are done. Only teams of one member can be helped; work does
  // not throw.
  template <class Work>
  void with_help(const Work& work) {
    if (help_ == nullptr) return work(index_);
    const HelpWanted::Offer offer{
        [](const void* context, int place) { (*static_cast<const Work*>(context))(place); }, &work,
        size_};
    help_->open(offer);
    work(index_);
    help_->close();
  }

  // The next item nobody has taken since the last barrier: 0, 1, 2, ... without end.
  int take() noexcept { return state_->next_item_.fetch_add(1, std::memory_order_relaxed); }

 private:
  friend class HelpWanted;
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
