// SPDX-License-Identifier: Apache-2.0
#include "llama/speculative.h"

#include <llama.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/fail.h"

namespace kvspan {
namespace {

// As in llama.cpp: models of a family pad their vocabularies differently, and name some of the
// first, special tokens differently.
constexpr std::int32_t kPadding = 128;
constexpr Token kFirstCompared = 5;

const llama_model* model_of(const Engine& engine) {
  return llama_get_model(engine.native());
}

Status check_pair(const Engine& draft, const Engine& target) {
  const llama_vocab* guesses = llama_model_get_vocab(model_of(draft));
  const llama_vocab* checks = llama_model_get_vocab(model_of(target));
  const std::int32_t sizes[] = {llama_vocab_n_tokens(guesses), llama_vocab_n_tokens(checks)};
  if (std::abs(sizes[0] - sizes[1]) > kPadding) {
    return fail(ErrorCode::kInvalidArgument,
                "'{}' cannot be a draft for '{}': their vocabularies have {} and {} tokens",
                draft.info().path, target.info().path, sizes[0], sizes[1]);
  }
  for (Token token = kFirstCompared; token < std::min(sizes[0], sizes[1]); ++token) {
    const std::string_view texts[] = {llama_vocab_get_text(guesses, token),
                                      llama_vocab_get_text(checks, token)};
    if (texts[0] == texts[1]) continue;
    return fail(ErrorCode::kInvalidArgument,
                "'{}' cannot be a draft for '{}': token {} is '{}' in one and '{}' in the other",
                draft.info().path, target.info().path, token, texts[0], texts[1]);
  }
  for (const Engine* engine : {&draft, &target}) {
    if (llama_model_is_hybrid(model_of(*engine)) || llama_model_is_recurrent(model_of(*engine))) {
      return fail(ErrorCode::kUnsupported,
                  "'{}' has recurrent layers, whose state cannot go back to before a wrong guess: "
                  "no draft model can be used",
                  engine->info().path);
    }
  }
  return {};
}

}  // namespace

Draft::Draft(std::unique_ptr<Engine> engine, std::unique_ptr<KvCache> cache,
             std::int32_t vocabulary, std::int32_t most)
    : engine_(std::move(engine)), cache_(std::move(cache)), vocabulary_(vocabulary), most_(most) {}

Result<std::unique_ptr<Draft>> Draft::open(const std::string& path, const EngineOptions& options,
                                           const Engine& target, std::int32_t most) {
  KVSPAN_TRY(auto engine, Engine::load(path, options));
  KVSPAN_CHECK_OK(check_pair(*engine, target));
  KVSPAN_TRY(auto cache, make_cache(engine->cache_shape(), "full"));
  return std::unique_ptr<Draft>(
      new Draft(std::move(engine), std::move(cache), target.info().vocabulary, most));
}

Status Draft::read() {
  if (sequence_.size() > static_cast<std::size_t>(engine_->info().context)) return {};
  const std::size_t most = std::min(held_.size(), sequence_.size() - 1);
  const auto end = held_.begin() + static_cast<std::ptrdiff_t>(most);
  const auto differs = std::mismatch(held_.begin(), end, sequence_.begin()).first;
  held_.erase(differs, held_.end());
  KVSPAN_CHECK_OK(cache_->truncate(static_cast<std::int32_t>(held_.size())));
  const Status status = engine_->prefill(*cache_, std::span(sequence_).subspan(held_.size()));
  held_.assign(sequence_.begin(), sequence_.begin() + cache_->tokens());
  return status;
}

Status Draft::start(std::span<const Token> prompt) {
  sequence_.assign(prompt.begin(), prompt.end());
  prompt_ = prompt.size();
  return read();
}

Result<std::vector<Token>> Draft::guess(std::span<const Token> answer, std::int32_t limit) {
  sequence_.resize(prompt_);
  sequence_.insert(sequence_.end(), answer.begin(), answer.end());
  const std::int32_t room = engine_->info().context - static_cast<std::int32_t>(sequence_.size());
  limit = std::min({limit, most_, room});
  std::vector<Token> guesses;
  if (limit <= 0) return guesses;
  KVSPAN_CHECK_OK(read());
  for (;;) {
    const std::span<const float> logits = engine_->logits(0);
    const auto token =
        static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (token >= vocabulary_) return guesses;
    guesses.push_back(token);
    if (static_cast<std::int32_t>(guesses.size()) == limit) return guesses;
    const BatchPart part{cache_.get(), {&guesses.back(), 1}, BatchPart::Logits::kLast};
    KVSPAN_CHECK_OK(engine_->decode({&part, 1}));
    held_.push_back(token);
  }
}

}  // namespace kvspan
