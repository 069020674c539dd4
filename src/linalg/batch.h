// SPDX-License-Identifier: Apache-2.0
// Many small problems shared out among the members of a team.
#pragma once

#include <cstddef>

#include "kvspan/team.h"

namespace kvspan {

// Calls work(i) once for each i in 0..items-1, on whichever member takes it; every member calls,
// right after a barrier or at the start of a job, and the call ends with a barrier. work(i) writes
// to places of its own only, so the outcome does not depend on the number of threads.
template <class Work>
void share_out(Team& team, std::size_t items, Work&& work) {
  for (int i; static_cast<std::size_t>(i = team.take()) < items;) {
    work(static_cast<std::size_t>(i));
  }
  team.barrier();
}

}  // namespace kvspan
