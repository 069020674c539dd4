// SPDX-License-Identifier: Apache-2.0
// A thread outside a team that has nothing to do can help with the team's items.
#pragma once

#include <atomic>

#include "kvspan/team.h"

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

  struct Offer {
    void (*work)(const void* context, int place);
    const void* context;
    int place;
  };
  void open(const Offer& offer) noexcept { offer_.store(&offer); }
  // Returns when the helper, where there is one, is done.
  void close() noexcept;

 private:
  // Both in one order for all threads: who helps says so, then looks for the offer; who closes
  // takes the offer back, then looks for a helper.
  alignas(64) std::atomic<const Offer*> offer_{nullptr};
  std::atomic<bool> helped_{false};
};

// work(place), which takes items, by every member, and by a helper where there is one. Returns when
// the caller's and the helper's are done. Only teams of one member can be helped; work does not
// throw.
template <class Work>
void with_help(const Team& team, const Work& work) {
  if (team.help() == nullptr) return work(team.index());
  const HelpWanted::Offer offer{
      [](const void* context, int place) { (*static_cast<const Work*>(context))(place); }, &work,
      team.size()};
  team.help()->open(offer);
  work(team.index());
  team.help()->close();
}

}  // namespace kvspan
