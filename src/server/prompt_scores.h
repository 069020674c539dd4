// SPDX-License-Identifier: Apache-2.0
// How likely a model finds the tokens of a prompt itself. The server computes results of a prompt's
// last token only; here a request says which prompt is to be scored, and the context that reads a
// sequence with these tokens scores them on its way.
#pragma once

#include <llama.h>

#include <cstddef>
#include <memory>
#include <mutex>
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

// One prompt. Written by the thread that decodes, read when the answer to the prompt is there.
struct PromptScores {
  std::vector<llama_token> tokens;
  std::size_t top = 1;
  std::vector<TokenScore> scores;  // of tokens 1, 2, ..: the first has nothing before it

  bool complete() const noexcept { return scores.size() + 1 >= tokens.size(); }
};

// Prompts that wait to be scored. Any thread may call.
class WantedScores {
 public:
  // Wanted as long as somebody holds it.
  std::shared_ptr<PromptScores> want(std::vector<llama_token> tokens, std::size_t top);
  // The one nobody has begun with that begins as a sequence does; null: none. Of several the first.
  std::shared_ptr<PromptScores> begin(std::span<const llama_token> sequence);

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<PromptScores>> waiting_;
};

// Of the running server.
WantedScores& wanted_scores();

}  // namespace kvspan::server
