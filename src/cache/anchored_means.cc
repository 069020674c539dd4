// SPDX-License-Identifier: Apache-2.0
#include "cache/anchored_means.h"

#include <algorithm>
#include <cmath>

namespace kvspan {

AnchoredMeans::AnchoredMeans(const Rope& rope, std::int32_t block, const float* means,
                             std::int32_t heads, std::int32_t dim, MemoryKind kind,
                             const std::shared_ptr<Ledger>& ledger)
    : pairs_((static_cast<std::int32_t>(rope.angles.size()) + 3) / 4 * 4),
      half_(block / 2),
      dim_(dim) {
  const std::size_t rotated = rope.angles.size(), half = static_cast<std::size_t>(half_);
  const std::size_t numbers = static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim);
  turns_ = Buffer(static_cast<std::size_t>(pairs_) * 2 * half * sizeof(float), kind, ledger);
  means_ = Buffer(numbers * sizeof(float), kind, ledger);
  float* to = turns_.as<float>();
  std::fill_n(to, static_cast<std::size_t>(pairs_) * 2 * half, 0.0f);
  for (std::size_t j = 0; j < rotated; ++j, to += 2 * half) {
    for (std::size_t k = 0; k < half; ++k) {
      const double angle = rope.angles[j] * (static_cast<double>(k) + 0.5);
      to[k] = static_cast<float>(std::cos(angle));
      to[half + k] = static_cast<float>(std::sin(angle));
    }
  }
  std::copy_n(means, numbers, means_.as<float>());
  const bool neighbours = rope.pairs == Rope::Pairs::kNeighbours;
  for (float* row = means_.as<float>(); heads-- > 0; row += dim) {
    for (std::size_t j = 0; j < rotated; ++j) {
      float& x = row[neighbours ? 2 * j : j];
      float& y = row[neighbours ? 2 * j + 1 : j + rotated];
      const double c = std::cos(0.5 * rope.angles[j]), s = -std::sin(0.5 * rope.angles[j]);
      const double turned = c * double{x} - s * double{y};
      y = static_cast<float>(s * double{x} + c * double{y});
      x = static_cast<float>(turned);
    }
  }
}

void AnchoredMeans::fold(const Rope& rope, std::int32_t head, const float* u,
                         float* to) const noexcept {
  const float* mean = means_.as<float>() + static_cast<std::ptrdiff_t>(head) * dim_;
  const auto rotated = static_cast<std::int32_t>(rope.angles.size());
  float* const a = to;
  float* const b = to + pairs_;
  if (rope.pairs == Rope::Pairs::kNeighbours) {
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
  std::fill(a + rotated, a + pairs_, 0.0f);
  std::fill(b + rotated, b + pairs_, 0.0f);
  float constant = 0.0f;
  for (std::int32_t i = 2 * rotated; i < dim_; ++i) constant += u[i] * mean[i];
  std::fill_n(b + pairs_, 4, constant);
}

}  // namespace kvspan
