// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/history/plain_cache.h"

#include <algorithm>
#include <cmath>

namespace kvspan::fuzz {
namespace {

double length(std::span<const float> row) {
  double sum = 0.0;
  for (const float x : row) sum += double{x} * double{x};
  return std::sqrt(sum);
}

// Relative to its largest number, how far one number of a stored row is from what it was; 1: nothing is known.
double row_error(const Recipe& recipe) {
  if (recipe.parts().size() > 1 || recipe.method().name() != "full") return 1.0;
  const std::string_view store = recipe.method().word("store");
  if (store == "f32") return 0x1p-24;
  if (store == "f16") return 0x1p-11;
  if (store == "bf16") return 0x1p-8;
  return 1.0 / 254 + 0x1p-11;  // 8 bits for each side of 32 numbers, and their scale in f16
}

}  // namespace

void PlainLayer::append(std::span<const std::int32_t> positions, const std::vector<float>& keys,
                        const std::vector<float>& values) {
  const auto k = std::ptrdiff_t(keys.size() / positions.size()), v = std::ptrdiff_t(values.size() / positions.size());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto at = std::ptrdiff_t(i);
    tokens_.push_back({positions[i],
                       {keys.begin() + at * k, keys.begin() + (at + 1) * k},
                       {values.begin() + at * v, values.begin() + (at + 1) * v}});
  }
}

void PlainLayer::truncate(std::int32_t n) {
  while (!tokens_.empty() && tokens_.back().position >= n) tokens_.pop_back();
}

bool PlainLayer::sees(std::int32_t query, std::int32_t position) const noexcept {
  return position <= query && (shape_->window == 0 || position > query - shape_->window) &&
         (shape_->chunk == 0 || position / shape_->chunk == query / shape_->chunk);
}

double PlainLayer::longest_values() const {
  double longest = 0.0;
  for (const Token& token : tokens_) longest = std::max(longest, length(token.value));
  return longest;
}

PlainLayer::Answer PlainLayer::attend(const float* query, std::int32_t head, std::int32_t position) const {
  const auto kv = static_cast<std::size_t>(head / (shape_->query_heads / shape_->kv_heads));
  const auto dk = static_cast<std::size_t>(shape_->key_dim), dv = static_cast<std::size_t>(shape_->value_dim);
  Answer answer;
  answer.output.assign(dv, 0.0);
  std::vector<double> scores;
  std::vector<const float*> values;
  double most = shape_->sinks.empty() ? -HUGE_VAL : double{shape_->sinks[static_cast<std::size_t>(head)]};
  for (const Token& token : tokens_) {
    if (!sees(position, token.position)) continue;
    const std::span key(token.key.data() + kv * dk, dk), value(token.value.data() + kv * dv, dv);
    double score = 0.0;
    for (std::size_t i = 0; i < dk; ++i) score += double{query[i]} * double{key[i]};
    score *= shape_->logit_scale;
    if (shape_->soft_cap > 0) score = shape_->soft_cap * std::tanh(score / shape_->soft_cap);
    if (!shape_->alibi.empty()) score -= double{shape_->alibi[static_cast<std::size_t>(head)]} * (position - token.position);
    scores.push_back(score);
    values.push_back(value.data());
    most = std::max(most, score);
    answer.largest_key = std::max(answer.largest_key, length(key));
    answer.largest_value = std::max(answer.largest_value, length(value));
  }
  answer.seen = scores.size();
  if (scores.empty()) return answer;
  double sum = shape_->sinks.empty() ? 0.0 : std::exp(double{shape_->sinks[static_cast<std::size_t>(head)]} - most);
  for (double& score : scores) sum += score = std::exp(score - most);
  for (std::size_t t = 0; t < scores.size(); ++t) {
    for (std::size_t i = 0; i < dv; ++i) answer.output[i] += scores[t] / sum * double{values[t][i]};
  }
  return answer;
}

// With scores off by up to d, weights are off by a factor of e^2d, and outputs by (e^2d - 1) of the largest value; values
// off by a share of their length add that. A row's error is at most sqrt(dim) times that of its largest number, which is at
// most its length. Sums of n products in f32 are off by n 2^-24 of the sum of their sizes, kept apart here for keys in f32.
// Where nothing is known of the rows: what codes restore is about as long as what was coded, at most twice, over all heads
// that are coded together, and both answers are means of such rows.
double error_limit(const Recipe& recipe, const LayerShape& shape, const float* query, const PlainLayer& layer,
                   const PlainLayer::Answer& plain) {
  const double coarse = 4.0 * layer.longest_values();
  const double relative = row_error(recipe);
  if (relative == 1.0) return coarse;
  const double dim = shape.key_dim, rounding = (dim + 8) * 0x1p-24;
  const double asked = length({query, static_cast<std::size_t>(shape.key_dim)});
  const double off = shape.logit_scale * asked * plain.largest_key * (relative * std::sqrt(dim) + rounding);
  const double kept = relative * std::sqrt(double(shape.value_dim)) + (static_cast<double>(plain.seen) + 8) * 0x1p-24;
  return std::min(coarse, plain.largest_value * (std::expm1(2 * off) + kept));
}

}  // namespace kvspan::fuzz
