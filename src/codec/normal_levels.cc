// SPDX-License-Identifier: Apache-2.0
#include "codec/normal_levels.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <vector>

#include "base/expect.h"

namespace kvspan {
namespace {

double normal_density(double x) {
  return std::isinf(x) ? 0.0 : std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
}
double below(double x) {
  return 0.5 * std::erfc(-x / std::numbers::sqrt2);
}

std::vector<float> find_levels(int bits) {
  const std::size_t n = std::size_t{1} << bits;
  std::vector<double> levels(n);
  for (std::size_t i = 0; i < n; ++i) {
    levels[i] = 6.0 * (static_cast<double>(i) + 0.5) / static_cast<double>(n) - 3.0;
  }
  const auto edge = [&](std::size_t i) {  // between levels i - 1 and i
    if (i == 0) return -std::numeric_limits<double>::infinity();
    if (i == n) return std::numeric_limits<double>::infinity();
    return 0.5 * (levels[i - 1] + levels[i]);
  };
  for (double moved = 1.0; moved > 1e-12;) {
    moved = 0.0;
    std::vector<double> means(n);
    for (std::size_t i = 0; i < n; ++i) {
      const double a = edge(i), b = edge(i + 1);
      means[i] = (normal_density(a) - normal_density(b)) / (below(b) - below(a));
      moved = std::max(moved, std::abs(means[i] - levels[i]));
    }
    levels = std::move(means);
  }
  return {levels.begin(), levels.end()};
}

}  // namespace

std::span<const float> normal_levels(int bits) {
  KVSPAN_EXPECT(bits >= 2 && bits <= 4, "levels of 2 to 4 bits");
  static const std::array<std::vector<float>, 3> kLevels{find_levels(2), find_levels(3),
                                                         find_levels(4)};
  return kLevels[static_cast<std::size_t>(bits - 2)];
}

}  // namespace kvspan
