// SPDX-License-Identifier: Apache-2.0
#include "server/prompt_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvspan::server {

TokenScore score_token(std::span<const float> logits, llama_token token, std::size_t top) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - most);
  const double log_sum = most + std::log(sum);
  TokenScore score;
  // A token that the model does not have comes from outside and is refused where it is read.
  const bool known = token >= 0 && static_cast<std::size_t>(token) < logits.size();
  score.logprob = known ? logits[static_cast<std::size_t>(token)] - log_sum : -std::numeric_limits<double>::infinity();
  std::vector<llama_token> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const std::size_t count = std::min(top, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](llama_token a, llama_token b) {
                      const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  for (std::size_t i = 0; i < count; ++i) {
    score.top.emplace_back(order[i], logits[static_cast<std::size_t>(order[i])] - log_sum);
  }
  return score;
}

std::shared_ptr<PromptScores> WantedScores::want(std::vector<llama_token> tokens, std::size_t top) {
  auto scores = std::make_shared<PromptScores>();
  scores->tokens = std::move(tokens);
  scores->top = top;
  const std::lock_guard lock(mutex_);
  waiting_.push_back(scores);
  return scores;
}

std::shared_ptr<PromptScores> WantedScores::begin(std::span<const llama_token> sequence) {
  const std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [](const auto& one) { return one.expired(); });
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    std::shared_ptr<PromptScores> scores = it->lock();
    if (!scores || sequence.size() > scores->tokens.size()) continue;
    if (!std::equal(sequence.begin(), sequence.end(), scores->tokens.begin())) continue;
    waiting_.erase(it);
    return scores;
  }
  return nullptr;
}

WantedScores& wanted_scores() {
  static WantedScores the;
  return the;
}

}  // namespace kvspan::server
