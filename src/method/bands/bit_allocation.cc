// SPDX-License-Identifier: Apache-2.0
#include "method/bands/bit_allocation.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvspan {

double level_distortion(int bits, BandsQuantizer quantizer) noexcept {
  if (quantizer == BandsQuantizer::kTrellis && bits > 0 && bits <= kTrellisMaxBits) {
    return trellis_distortion(bits);
  }
  // As the table of the spec rounds them; gaussian_midrise gives the same to its digits.
  constexpr std::array<double, 9> kDistortion{1.0,     0.3634,  0.1188,  0.03744, 0.01154,
                                              0.00349, 0.00104, 0.00030, 0.00008};
  return kDistortion[static_cast<std::size_t>(bits)];
}

std::vector<std::uint8_t> choose_bits(std::span<const double> power, double slope,
                                      const LevelSet& levels, BandsQuantizer quantizer,
                                      std::size_t grain) {
  std::vector<std::uint8_t> bits(power.size());
  for (std::size_t from = 0; from < power.size(); from += grain) {
    const std::size_t count = std::min(grain, power.size() - from);
    double sum = 0.0, least = 0.0;
    for (std::size_t i = 0; i < count; ++i) sum += power[from + i];
    std::uint8_t best = 0;
    bool first = true;
    for (int b = 0; b <= LevelSet::kMax; ++b) {
      if (!levels.contains(b)) continue;
      const double cost =
          sum * level_distortion(b, quantizer) + slope * b * static_cast<double>(count);
      if (first || cost < least) {
        least = cost;
        best = static_cast<std::uint8_t>(b);
        first = false;
      }
    }
    std::fill_n(bits.begin() + static_cast<std::ptrdiff_t>(from), count, best);
  }
  return bits;
}

double slope_for(const std::vector<std::span<const double>>& power, double budget,
                 const LevelSet& levels, BandsQuantizer quantizer, std::size_t grain) {
  std::size_t count = 0;
  for (const auto& part : power) count += part.size();
  double low = -60.0, high = 40.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    double sum = 0.0;
    for (const auto& part : power) {
      for (const std::uint8_t b : choose_bits(part, std::exp(middle), levels, quantizer, grain)) {
        sum += b;
      }
    }
    (sum / static_cast<double>(count) > budget ? low : high) = middle;
  }
  return std::exp(high);
}

}  // namespace kvspan
