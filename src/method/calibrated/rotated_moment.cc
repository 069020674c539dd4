// SPDX-License-Identifier: Apache-2.0
#include "method/calibrated/rotated_moment.h"

#include <cmath>
#include <complex>
#include <cstddef>

namespace kvspan {
namespace {

using Complex = std::complex<double>;

// Coordinates of D that turn together; a coordinate that does not turn is a pair of its own.
struct Turning {
  std::size_t first, second;  // equal: alone
  double angle;
};

std::vector<Turning> pairs_of(const Rope& rope, std::int32_t heads, std::int32_t dim,
                              std::size_t total) {
  std::vector<Turning> pairs;
  const std::size_t half = rope.angles.size();
  const bool neighbours = rope.pairs == Rope::Pairs::kNeighbours;
  for (std::int32_t h = 0; h < heads; ++h) {
    const std::size_t base = static_cast<std::size_t>(h) * static_cast<std::size_t>(dim);
    for (std::size_t i = 0; i < half; ++i) {
      pairs.push_back({base + (neighbours ? 2 * i : i), base + (neighbours ? 2 * i + 1 : i + half),
                       rope.angles[i]});
    }
    for (std::size_t i = 2 * half; i < static_cast<std::size_t>(dim); ++i) {
      pairs.push_back({base + i, base + i, 0.0});
    }
  }
  for (std::size_t i = static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim); i < total;
       ++i) {
    pairs.push_back({i, i, 0.0});
  }
  return pairs;
}

Complex mean_turn(double angle, const std::vector<std::int32_t>& offsets) {
  Complex sum = 0.0;
  for (const std::int32_t o : offsets) sum += std::polar(1.0, angle * o);
  return sum / static_cast<double>(offsets.size());
}

}  // namespace

std::vector<std::int32_t> anchored_offsets(std::int32_t block) {
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(block));
  for (std::int32_t i = 0; i < block; ++i) offsets[static_cast<std::size_t>(i)] = i - block / 2;
  return offsets;
}

void average_rotations(const Rope& rope, std::int32_t heads, std::int32_t dim,
                       const std::vector<std::int32_t>& offsets, MatrixD& M) {
  const std::vector<Turning> pairs = pairs_of(rope, heads, dim, M.rows());
  // Angles repeat from head to head, so the means are looked up by the rope's own pairs; the last
  // place stands for what does not turn.
  const std::size_t count = rope.angles.size() + 1;
  const auto angle = [&](std::size_t i) { return i + 1 == count ? 0.0 : rope.angles[i]; };
  std::vector<Complex> difference(count * count), sum(count * count);
  for (std::size_t a = 0; a < count; ++a) {
    for (std::size_t b = 0; b < count; ++b) {
      difference[a * count + b] = mean_turn(angle(a) - angle(b), offsets);
      sum[a * count + b] = mean_turn(angle(a) + angle(b), offsets);
    }
  }
  const auto place = [&](const Turning& p) {
    if (p.first == p.second) return count - 1;
    const std::size_t i = p.first % static_cast<std::size_t>(dim);
    return rope.pairs == Rope::Pairs::kNeighbours ? i / 2 : i;
  };
  for (const Turning& a : pairs) {
    for (const Turning& b : pairs) {
      const bool lone_a = a.first == a.second, lone_b = b.first == b.second;
      if (lone_a && lone_b) continue;
      const double xx = M(a.first, b.first), xy = lone_b ? 0.0 : M(a.first, b.second);
      const double yx = lone_a ? 0.0 : M(a.second, b.first);
      const double yy = lone_a || lone_b ? 0.0 : M(a.second, b.second);
      // z_a conj(z_b) and z_a z_b.
      const std::size_t at = place(a) * count + place(b);
      const Complex conjugate = difference[at] * Complex(xx + yy, yx - xy);
      const Complex plain = sum[at] * Complex(xx - yy, yx + xy);
      M(a.first, b.first) = 0.5 * (conjugate + plain).real();
      if (!lone_a) M(a.second, b.first) = 0.5 * (conjugate + plain).imag();
      if (!lone_b) M(a.first, b.second) = 0.5 * (plain - conjugate).imag();
      if (!lone_a && !lone_b) M(a.second, b.second) = 0.5 * (conjugate - plain).real();
    }
  }
}

}  // namespace kvspan
