// SPDX-License-Identifier: Apache-2.0
#include "analysis/spectrum.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "subspace/energy_rank.h"

namespace kvspan {

SpectrumFigures figures_of(std::span<const double> values) {
  std::vector<double> squared(values.begin(), values.end());
  for (double& value : squared) value = std::max(value, 0.0);
  SpectrumFigures out;
  for (const double value : squared) out.energy += value;
  if (out.energy <= 0.0) return out;
  for (std::size_t i = 0; i < kRankShares.size(); ++i) {
    out.ranks[i] = rank_for_energy(squared, kRankShares[i]);
  }
  for (std::size_t i = 0; i < squared.size(); ++i) {
    const double p = squared[i] / out.energy;
    if (i < kTopDirections) out.top16 += p;
    if (p > 0.0) out.entropy -= p * std::log(p);
  }
  out.effective = std::exp(out.entropy);
  return out;
}

}  // namespace kvspan
