// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare.h"

#include <algorithm>

#include "base/expect.h"

namespace kvspan {

Comparison compare(const SymmetricEigen& A, const SymmetricEigen& B, std::size_t r) {
  const std::size_t d = A.values.size();
  KVSPAN_EXPECT(B.values.size() == d && r >= 1 && r <= d, "a rank of both spaces");
  Comparison out;
  double held = 0.0, best = 0.0, energy = 0.0;
  for (std::size_t j = 0; j < d; ++j) {
    const double value = std::max(B.values[j], 0.0);
    const double* b = B.vectors.row(j);
    double within = 0.0;  // |P b|^2
    for (std::size_t i = 0; i < r; ++i) {
      const double* a = A.vectors.row(i);
      double product = 0.0;
      for (std::size_t k = 0; k < d; ++k) product += a[k] * b[k];
      within += product * product;
    }
    if (j < r) {
      out.overlap += within / static_cast<double>(r);
      best += value;
    }
    held += value * within;
    energy += value;
  }
  out.retained = best > 0.0 ? held / best : 1.0;
  out.rer = energy > 0.0 ? std::max(0.0, 1.0 - held / energy) : 0.0;
  return out;
}

}  // namespace kvspan
