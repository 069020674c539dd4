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

bool SequenceScores::read(llama_pos position, llama_token token, std::span<const float> logits) {
  const auto at = static_cast<std::size_t>(position);
  if (at < tokens_.size()) return tokens_[at] == token;
  if (at > tokens_.size() || (at > 0 && logits_.empty())) return false;
  if (at > 0) scores_.push_back(score_token(logits_, token, top_));
  tokens_.push_back(token);
  logits_.assign(logits.begin(), logits.end());
  return true;
}

std::shared_ptr<WantedPrompt> WantedScores::want(std::vector<llama_token> tokens, std::size_t top) {
  auto prompt = std::make_shared<WantedPrompt>();
  prompt->tokens = std::move(tokens);
  prompt->top = top;
  const std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [](const auto& one) { return one.expired(); });
  waiting_.push_back(prompt);
  return prompt;
}

std::optional<std::vector<TokenScore>> WantedScores::take(WantedPrompt& prompt) {
  const std::lock_guard lock(mutex_);
  if (prompt.scores.size() + 1 < prompt.tokens.size()) return std::nullopt;
  return std::move(prompt.scores);
}

std::size_t WantedScores::top_of(std::span<const llama_token> tokens) {
  const std::lock_guard lock(mutex_);
  std::size_t most = 0;
  for (const auto& one : waiting_) {
    const std::shared_ptr<WantedPrompt> prompt = one.lock();
    if (!prompt || tokens.size() > prompt->tokens.size()) continue;
    if (!std::equal(tokens.begin(), tokens.end(), prompt->tokens.begin())) continue;
    most = std::max(most, prompt->top);
  }
  return most;
}

void WantedScores::give(const SequenceScores& sequence) {
  const std::lock_guard lock(mutex_);
  for (const auto& one : waiting_) {
    const std::shared_ptr<WantedPrompt> prompt = one.lock();
    // One that wants more of the likeliest came later than the sequence began: it has its own.
    if (!prompt || prompt->top > sequence.top()) continue;
    if (!std::equal(prompt->tokens.begin(), prompt->tokens.end(), sequence.tokens().begin(),
                    sequence.tokens().end())) {
      continue;
    }
    prompt->scores.assign(sequence.scores().begin(), sequence.scores().end());
    for (TokenScore& score : prompt->scores) {
      score.top.resize(std::min(score.top.size(), prompt->top));
    }
  }
}

WantedScores& wanted_scores() {
  static WantedScores the;
  return the;
}

}  // namespace kvspan::server
