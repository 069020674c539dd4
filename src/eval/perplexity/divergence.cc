// SPDX-License-Identifier: Apache-2.0
#include "eval/perplexity/divergence.h"

#include <algorithm>
#include <cmath>

#include "attention/kernels/kernels.h"
#include "base/cpu_level.h"
#include "base/expect.h"

namespace kvspan {
namespace {

constexpr float kLog2E = 1.44269504f;

// scratch[i] = exp(logits[i] - top), in f32.
void exponentials(std::span<const float> logits, float top, std::vector<float>& scratch) {
  scratch.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) scratch[i] = (logits[i] - top) * kLog2E;
  attention_kernels(cpu_level())
      .exp2(scratch.data(), static_cast<std::int32_t>(logits.size()), scratch.data());
}

// Eight sums at a time, so that additions need not wait for each other.
template <class Term>
double sum_of(std::size_t count, Term term) {
  double sums[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) sums[j] += term(i + j);
  }
  for (; i < count; ++i) sums[0] += term(i);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace

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

LogSoftmax log_softmax(std::span<const float> logits, std::vector<float>& scratch) {
  KVSPAN_EXPECT(!logits.empty(), "a row of logits");
  LogSoftmax out;
  out.best = argmax(logits);
  out.top = logits[static_cast<std::size_t>(out.best)];
  exponentials(logits, out.top, scratch);
  // The kernel takes NaN for a small number; 0 x keeps it, and infinities.
  const double sum = sum_of(logits.size(), [&](std::size_t i) {
    return static_cast<double>(scratch[i] + 0.0f * logits[i]);
  });
  out.log_sum = out.top + std::log(sum);
  return out;
}

double kl_divergence(std::span<const float> reference, const LogSoftmax& p,
                     std::span<const float> other, const LogSoftmax& q,
                     std::vector<float>& scratch) {
  KVSPAN_EXPECT(reference.size() == other.size() && !reference.empty(), "equal vocabularies");
  exponentials(reference, p.top, scratch);
  // Differences are taken before the norms come in: those are the same for every entry.
  const double shift = q.log_sum - p.log_sum;
  const double sum = sum_of(reference.size(), [&](std::size_t i) {
    return scratch[i] * (double{reference[i]} - double{other[i]} + shift);
  });
  // The exact value is not negative; rounding of a sum of both signs may be. NaN passes.
  return std::max(sum * std::exp(p.top - p.log_sum), 0.0);
}

}  // namespace kvspan
