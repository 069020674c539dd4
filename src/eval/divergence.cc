// SPDX-License-Identifier: Apache-2.0
#include "eval/divergence.h"

#include <algorithm>
#include <cmath>

#include "base/expect.h"

namespace kvspan {

double log_sum_exp(std::span<const float> logits) noexcept {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float x : logits) sum += std::exp(x - top);
  return top + std::log(sum);
}

double kl_divergence(std::span<const float> reference, std::span<const float> other) noexcept {
  KVSPAN_EXPECT(reference.size() == other.size() && !reference.empty(), "equal vocabularies");
  const double reference_norm = log_sum_exp(reference), other_norm = log_sum_exp(other);
  double sum = 0.0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double log_p = reference[i] - reference_norm;
    sum += std::exp(log_p) * (log_p - (other[i] - other_norm));
  }
  // The exact value is not negative; rounding of a sum of both signs may be.
  return std::max(sum, 0.0);
}

std::int32_t argmax(std::span<const float> logits) noexcept {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace kvspan
