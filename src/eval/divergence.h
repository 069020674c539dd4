// SPDX-License-Identifier: Apache-2.0
// How far two next-token distributions are apart, from their logits. Computed in f64.
#pragma once

#include <cstdint>
#include <span>

namespace kvspan {

// log(sum(exp(logits))), safe for any finite logits.
double log_sum_exp(std::span<const float> logits) noexcept;

// KL(p || q) in nats, p = softmax(reference), q = softmax(other); never below 0.
double kl_divergence(std::span<const float> reference, std::span<const float> other) noexcept;

// Index of the largest; the first of equals.
std::int32_t argmax(std::span<const float> logits) noexcept;

}  // namespace kvspan
