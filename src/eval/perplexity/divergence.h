// SPDX-License-Identifier: Apache-2.0
// How far two next-token distributions are apart, from their logits. Computed in f64; the forms
// that take a scratch row compute exponentials in f32, which is ten times as fast.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvspan {

// log(sum(exp(logits))), safe for any finite logits.
double log_sum_exp(std::span<const float> logits) noexcept;

// KL(p || q) in nats, p = softmax(reference), q = softmax(other); never below 0.
double kl_divergence(std::span<const float> reference, std::span<const float> other) noexcept;

// Index of the largest; the first of equals.
std::int32_t argmax(std::span<const float> logits) noexcept;

// What a row of logits says of its distribution: log p[i] = logits[i] - log_sum.
struct LogSoftmax {
  double log_sum = 0.0;   // within 1e-6 of log_sum_exp; NaN where a logit is not finite
  float top = 0.0f;       // the largest logit
  std::int32_t best = 0;  // argmax
};
// `scratch` is resized to the row and written over; one for each thread.
LogSoftmax log_softmax(std::span<const float> logits, std::vector<float>& scratch);

// kl_divergence of two rows whose log_softmax is known; absolute error about 1e-6 times the largest
// difference of their log-probabilities. Exactly 0 for equal rows; NaN where a logit is not finite.
double kl_divergence(std::span<const float> reference, const LogSoftmax& p,
                     std::span<const float> other, const LogSoftmax& q,
                     std::vector<float>& scratch);

}  // namespace kvspan
