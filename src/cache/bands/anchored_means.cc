// SPDX-License-Identifier: Apache-2.0
#include "cache/bands/anchored_means.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kvspan {
namespace {

double chebyshev(std::size_t order, double x) {
  return std::cos(static_cast<double>(order) * std::acos(x));
}

// The coefficient of T_order in f on [-1, 1], by Gauss-Chebyshev quadrature.
template <class F>
double coefficient(std::size_t order, const F& f) {
  constexpr int kNodes = 32;  // exact for polynomials of degree 63
  double sum = 0.0;
  for (int i = 0; i < kNodes; ++i) {
    const double x = std::cos(std::numbers::pi * (i + 0.5) / kNodes);
    sum += f(x) * chebyshev(order, x);
  }
  return sum * (order == 0 ? 1.0 : 2.0) / kNodes;
}

// sum[m] += x by[m]
inline void add_orders(float x, const float* by, float (&sum)[4]) {
  for (int m = 0; m < 4; ++m) sum[m] += x * by[m];
}

}  // namespace

AnchoredMeans::AnchoredMeans(const Rope& rope, std::int32_t block, const float* means,
                             std::int32_t heads, std::int32_t dim, MemoryKind kind,
                             const std::shared_ptr<Ledger>& ledger)
    : pairs_((static_cast<std::int32_t>(rope.angles.size()) + 3) / 4 * 4),
      terms_(pairs_),
      half_(block / 2),
      dim_(dim),
      rotated_(static_cast<std::int32_t>(rope.angles.size())),
      neighbours_(rope.pairs == Rope::Pairs::kNeighbours),
      alone_(static_cast<std::int32_t>(rope.angles.size())) {
  const std::size_t rotated = rope.angles.size(), half = static_cast<std::size_t>(half_);
  std::size_t alone = rotated;
  while (alone > 0 && std::abs(rope.angles[alone - 1]) * half_ < kSlow) --alone;
  if ((rotated - alone) % 2 == 1) ++alone;  // slow pairs are taken two at a time
  if (const auto terms = static_cast<std::int32_t>((alone + kOrders + 3) / 4 * 4); terms < pairs_) {
    terms_ = terms;
    alone_ = static_cast<std::int32_t>(alone);
    slow_ = Buffer((rotated - alone) * 2 * kOrders * sizeof(float), kind, ledger);
  }
  const std::size_t numbers = static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim);
  turns_ = Buffer(static_cast<std::size_t>(terms_) * 2 * half * sizeof(float), kind, ledger);
  means_ = Buffer(numbers * sizeof(float), kind, ledger);
  float* to = turns_.as<float>();
  std::fill_n(to, static_cast<std::size_t>(terms_) * 2 * half, 0.0f);
  for (std::size_t j = 0; j < static_cast<std::size_t>(alone_); ++j, to += 2 * half) {
    for (std::size_t k = 0; k < half; ++k) {
      const double angle = rope.angles[j] * (static_cast<double>(k) + 0.5);
      to[k] = static_cast<float>(std::cos(angle));
      to[half + k] = static_cast<float>(std::sin(angle));
    }
  }
  if (slow_.bytes() > 0) set_slow(rope, to);
  std::copy_n(means, numbers, means_.as<float>());
  for (float* row = means_.as<float>(); heads-- > 0; row += dim) {
    for (std::size_t j = 0; j < rotated; ++j) {
      float& x = row[neighbours_ ? 2 * j : j];
      float& y = row[neighbours_ ? 2 * j + 1 : j + rotated];
      const double c = std::cos(0.5 * rope.angles[j]), s = -std::sin(0.5 * rope.angles[j]);
      const double turned = c * double{x} - s * double{y};
      y = static_cast<float>(s * double{x} + c * double{y});
      x = static_cast<float>(turned);
    }
  }
}

// With x = (k + 1/2) / half: cos((k + 1/2) angle) = cos(z x) = sum over m of c_2m T_2m(x), z = half
// angle; sines likewise in T_2m+1.
void AnchoredMeans::set_slow(const Rope& rope, float* turns) {
  const auto half = static_cast<std::size_t>(half_);
  for (std::size_t m = 0; m < kOrders; ++m, turns += 2 * half) {
    for (std::size_t k = 0; k < half; ++k) {
      const double x = (static_cast<double>(k) + 0.5) / half_;
      turns[k] = static_cast<float>(chebyshev(2 * m, x));
      turns[half + k] = static_cast<float>(chebyshev(2 * m + 1, x));
    }
  }
  float* to = slow_.as<float>();
  for (auto j = static_cast<std::size_t>(alone_); j < rope.angles.size(); ++j, to += 2 * kOrders) {
    const double z = rope.angles[j] * half_;
    for (std::size_t m = 0; m < kOrders; ++m) {
      to[m] = static_cast<float>(coefficient(2 * m, [&](double x) { return std::cos(z * x); }));
      to[kOrders + m] =
          static_cast<float>(coefficient(2 * m + 1, [&](double x) { return std::sin(z * x); }));
    }
  }
}

void AnchoredMeans::fold(std::int32_t head, const float* u, float* to) const noexcept {
  const float* const mean = this->mean(head);
  const std::int32_t rotated = rotated_;
  float* const a = to;
  float* const b = to + pairs_;
  if (neighbours_) {
    for (std::int32_t j = 0; j < rotated; ++j) {
      const float x = u[2 * j], y = u[2 * j + 1], p = mean[2 * j], q = mean[2 * j + 1];
      a[j] = x * p + y * q;
      b[j] = y * p - x * q;
    }
  } else {
    const float* const y = u + rotated;
    const float* const q = mean + rotated;
    for (std::int32_t j = 0; j < rotated; ++j) {
      a[j] = u[j] * mean[j] + y[j] * q[j];
      b[j] = y[j] * mean[j] - u[j] * q[j];
    }
  }
  if (slow_.bytes() > 0) {
    // Two sums of each: one alone would wait for itself.
    float even[kOrders] = {}, more_even[kOrders] = {}, odd[kOrders] = {}, more_odd[kOrders] = {};
    const float* by = slow_.as<float>();
    for (std::int32_t j = alone_; j < rotated; j += 2, by += 4 * kOrders) {
      add_orders(a[j], by, even);
      add_orders(b[j], by + kOrders, odd);
      add_orders(a[j + 1], by + 2 * kOrders, more_even);
      add_orders(b[j + 1], by + 3 * kOrders, more_odd);
    }
    for (std::size_t m = 0; m < kOrders; ++m)
      a[alone_ + std::ptrdiff_t(m)] = even[m] + more_even[m];
    for (std::size_t m = 0; m < kOrders; ++m) b[alone_ + std::ptrdiff_t(m)] = odd[m] + more_odd[m];
  }
  const std::int32_t used = used_terms();
  std::fill(a + used, a + terms_, 0.0f);
  std::fill(b + used, b + terms_, 0.0f);
  float constant = 0.0f;
  for (std::int32_t i = 2 * rotated; i < dim_; ++i) constant += u[i] * mean[i];
  std::fill_n(b + pairs_, 4, constant);
}

}  // namespace kvspan
