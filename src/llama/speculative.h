// SPDX-License-Identifier: Apache-2.0
// Speculative decoding: a smaller model of the same vocabulary guesses the next tokens, and the
// model that answers checks them in one pass, which costs hardly more than a pass for one token
// (llama/generate.h). Its tokens are those that it would have chosen alone; guesses only save time.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "llama/engine.h"

namespace kvspan {

class Draft {
 public:
  // Guesses up to `most` tokens at a time for `target`. Fails where the vocabularies differ, and
  // where one of the two has recurrent layers: their state cannot go back to before a wrong guess.
  static Result<std::unique_ptr<Draft>> open(const std::string& path, const EngineOptions& options,
                                             const Engine& target, std::int32_t most);

  // Reads the prompt of the next answer; what the cache holds of it stays.
  Status start(std::span<const Token> prompt);
  // What could follow the prompt and `answer`, at most `limit` tokens, the most likely one each
  // time. None where the sequence fills this model's context.
  Result<std::vector<Token>> guess(std::span<const Token> answer, std::int32_t limit);

  // As Engine::set_cancel_flag.
  void set_cancel_flag(const std::atomic<bool>* flag) noexcept { engine_->set_cancel_flag(flag); }

 private:
  Draft(std::unique_ptr<Engine> engine, std::unique_ptr<KvCache> cache, std::int32_t vocabulary,
        std::int32_t most);
  // Brings the cache to the sequence, and logits(0) to its last token.
  Status read();

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<KvCache> cache_;
  std::int32_t vocabulary_;  // of the target, which may have fewer tokens
  std::int32_t most_;
  std::size_t prompt_ = 0;       // tokens of the sequence that are the prompt's
  std::vector<Token> sequence_;  // prompt and answer
  std::vector<Token> held_;      // what the cache holds
};

}  // namespace kvspan
