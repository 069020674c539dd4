// SPDX-License-Identifier: Apache-2.0
// How likely a model finds the tokens of a prompt itself. The server computes results of a prompt's
// last token only. So a request says which prompt it wants scored; the context scores sequences
// that begin like a wanted prompt while it reads them, and gives a request the scores of a sequence
// whose tokens are exactly those of its prompt.
#pragma once

#include <llama.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvspan::server {

struct TokenScore {
  double logprob = 0.0;
  std::vector<std::pair<llama_token, double>> top;  // the likeliest ones and theirs, best first
};

// Of `token` and of the `top` likeliest, by a row of logits [vocabulary].
TokenScore score_token(std::span<const float> logits, llama_token token, std::size_t top);

// The tokens of one sequence, scored while they are read. Each token is scored by the logits of the
// token before it in this sequence, so scores always belong to the tokens beside them.
class SequenceScores {
 public:
  explicit SequenceScores(std::size_t top) : top_(top) {}

  // The token at `position` was read; `logits` [vocabulary] are what it led to, empty if nothing
  // more will be scored. False if a token before it is missing or differs from an earlier reading:
  // the sequence cannot be scored any more. A position may be read twice (a batch that is tried
  // again).
  bool read(llama_pos position, llama_token token, std::span<const float> logits);

  std::span<const llama_token> tokens() const noexcept { return tokens_; }
  // Of tokens 1, 2, ..: the first has nothing before it.
  std::span<const TokenScore> scores() const noexcept { return scores_; }
  std::size_t top() const noexcept { return top_; }

 private:
  std::size_t top_;
  std::vector<llama_token> tokens_;
  std::vector<TokenScore> scores_;
  std::vector<float> logits_;  // of the last of tokens_
};

// A prompt that a request wants scored.
struct WantedPrompt {
  std::vector<llama_token> tokens;
  std::size_t top = 1;
  std::vector<TokenScore> scores;  // of tokens 1, 2, ..; empty until a sequence gave them
};

// Prompts that wait to be scored. Any thread may call.
class WantedScores {
 public:
  // Wanted as long as the caller holds it.
  std::shared_ptr<WantedPrompt> want(std::vector<llama_token> tokens, std::size_t top);
  // The scores, once a sequence of these tokens was read to its end.
  std::optional<std::vector<TokenScore>> take(WantedPrompt& prompt);

  // How many likeliest tokens the prompts that begin with `tokens` want; 0: no prompt does.
  std::size_t top_of(std::span<const llama_token> tokens);
  // Gives a sequence's scores to all who want its tokens.
  void give(const SequenceScores& sequence);

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<WantedPrompt>> waiting_;
};

// Of the running server.
WantedScores& wanted_scores();

}  // namespace kvspan::server
