// SPDX-License-Identifier: Apache-2.0
// The running state of a blockwise softmax: the highest score seen and the sum of weights relative
// to it. With the weighted sum of values beside it, parts merge into the softmax over all their
// tokens; a part without tokens (max = -inf, sum = 0) changes nothing. Scores are in base 2.
// Source: Milakov, Gimelshein, 2018 (online softmax); Dao et al., 2022.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvspan {

struct SoftmaxState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0f;

  // Natural logarithm of the sum of e^logit; -inf without tokens.
  float log_sum_exp() const noexcept {
    return sum == 0.0f ? -std::numeric_limits<float>::infinity()
                       : static_cast<float>(0.6931471805599453 *
                                            (static_cast<double>(max) + std::log2(double{sum})));
  }
};

// What merging does to the weighted sums: merged = kept * own + added * other.
struct MergeFactors {
  float kept = 1.0f;
  float added = 0.0f;
};

inline MergeFactors merge_into(SoftmaxState& own, const SoftmaxState& other) noexcept {
  if (other.sum == 0.0f) return {1.0f, 0.0f};
  if (own.sum == 0.0f) {
    own = other;
    return {0.0f, 1.0f};
  }
  const float max = own.max > other.max ? own.max : other.max;
  const MergeFactors factors{std::exp2(own.max - max), std::exp2(other.max - max)};
  own.sum = own.sum * factors.kept + other.sum * factors.added;
  own.max = max;
  return factors;
}

// The same of outputs, whose weights sum to 1: `lse`, a natural log-sum-exp, becomes that of both parts together.
inline MergeFactors merge_outputs(float added_lse, float& lse) noexcept {
  const double a = lse, b = added_lse, most = std::max(a, b);
  if (!(most > -std::numeric_limits<double>::infinity())) return {1.0f, 0.0f};
  const double wa = std::exp(a - most), wb = std::exp(b - most);
  lse = static_cast<float>(most + std::log(wa + wb));
  return {static_cast<float>(wa / (wa + wb)), static_cast<float>(wb / (wa + wb))};
}

// Likewise of tokens with this state: with `adds` into the output that `lse` tells of, else into nothing, and `lse`, which
// may then be null, is written.
inline MergeFactors merge_state(const SoftmaxState& own, bool adds, float* lse) noexcept {
  if (adds) return merge_outputs(own.log_sum_exp(), *lse);
  if (lse != nullptr) *lse = own.log_sum_exp();
  return {0.0f, own.sum > 0.0f ? 1.0f : 0.0f};
}

}  // namespace kvspan
