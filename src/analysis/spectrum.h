// SPDX-License-Identifier: Apache-2.0
// What the eigenvalues of a second moment E[x x'] say about how many directions x needs. They are
// the squared singular values of the stacked rows, over their number.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace kvspan {

inline constexpr std::array<double, 3> kRankShares = {0.90, 0.95, 0.99};
inline constexpr std::size_t kTopDirections = 16;

struct SpectrumFigures {
  double energy = 0.0;  // the sum, E|x|^2
  // Fewest directions that hold each of kRankShares of the energy; 0 where there is none.
  std::array<std::size_t, kRankShares.size()> ranks{};
  double top16 = 0.0;      // share of the energy in the first 16 directions
  double entropy = 0.0;    // von Neumann, of the moment over its trace: -sum p log p, nats
  double effective = 0.0;  // e^entropy: the dimension of an isotropic moment of that entropy
};

// `values` descending. Negative ones, which rounding makes of zeros, count as 0. Without energy all
// figures are 0.
SpectrumFigures figures_of(std::span<const double> values);

}  // namespace kvspan
