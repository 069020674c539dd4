// SPDX-License-Identifier: Apache-2.0
// Bits by importance: one Lagrangian over the components of all layers. A component of variance
// `power` coded with b bits is left with power D(b), D of the quantizer for a Gaussian; b minimises
// power D(b) + slope b, and one slope serves all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "codec/bands/bands_pack.h"
#include "recipe/value.h"

namespace kvspan {

// D(b), b in 0..8; 7 is not a level.
double level_distortion(int bits, BandsQuantizer quantizer = BandsQuantizer::kUniform) noexcept;

// Bits of each component at a slope; `grain` neighbours get the same.
std::vector<std::uint8_t> choose_bits(std::span<const double> power, double slope,
                                      const LevelSet& levels,
                                      BandsQuantizer quantizer = BandsQuantizer::kUniform,
                                      std::size_t grain = 1);
// The slope, by bisection on its logarithm, at which the mean of the bits over all components ends
// just under `budget`.
double slope_for(const std::vector<std::span<const double>>& power, double budget,
                 const LevelSet& levels, BandsQuantizer quantizer = BandsQuantizer::kUniform,
                 std::size_t grain = 1);

}  // namespace kvspan
