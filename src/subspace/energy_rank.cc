// SPDX-License-Identifier: Apache-2.0
#include "subspace/energy_rank.h"

#include "base/expect.h"

namespace kvspan {

std::size_t rank_for_energy(std::span<const double> squared, double total, double share) {
  KVSPAN_EXPECT(share > 0.0 && share <= 1.0, "a share of the energy is above 0 and at most 1");
  double held = 0.0;
  std::size_t r = 0;
  while (r < squared.size() && held < share * total) held += squared[r++];
  return r;
}

std::size_t rank_for_energy(std::span<const double> squared, double share) {
  double total = 0.0;  // in the order of the loop above, so that a share of 1 can be reached
  for (const double value : squared) total += value;
  return rank_for_energy(squared, total, share);
}

}  // namespace kvspan
