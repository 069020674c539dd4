// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval/retrieval_measurement.h"

#include <cmath>

#include "base/fail.h"

namespace kvspan {

Result<std::vector<Token>> encode_sample(const Tokenizer& tokenizer, const RetrievalSample& sample,
                                         PromptForm form) {
  if (form == PromptForm::kPlain) {
    return tokenizer.encode(sample.prompt + sample.answer_prefix, {});
  }
  const ChatMessage message{"user", sample.prompt};
  KVSPAN_TRY(std::string text, tokenizer.apply_chat_template({&message, 1}, true));
  // The turn's own line break stands where the plain text has a space.
  const std::size_t begin = sample.answer_prefix.find_first_not_of(" \n");
  if (begin != std::string::npos) text += sample.answer_prefix.substr(begin);
  return tokenizer.encode(text, {.parse_special = true});
}

Result<std::string> greedy_answer(Engine& engine, const Tokenizer& tokenizer, KvCache& cache,
                                  std::span<const Token> tokens, const GenerateOptions& options) {
  KVSPAN_CHECK_OK(engine.prefill(cache, tokens));
  for (const float logit : engine.logits(0)) {
    if (!std::isfinite(logit)) {
      return fail(ErrorCode::kInvalidArgument, "its logits are not finite");
    }
  }
  KVSPAN_TRY(const auto sampler, Sampler::make({.temperature = 0.0f}, engine));
  KVSPAN_TRY(Generation generation, generate(engine, tokenizer, cache, *sampler, options, nullptr));
  if (generation.reason == StopReason::kCancelled) return fail(ErrorCode::kCancelled, "stopped");
  return std::move(generation.text);
}

ScoreRow retrieval_scorer(Engine& engine, const Tokenizer& tokenizer, const RetrievalTask& task,
                          std::span<const RetrievalSample> samples, PromptForm form) {
  return [&engine, &tokenizer, match = task.match, most = task.answer_tokens, samples, form](
             KvCache& cache, std::size_t row) -> Result<RowOutcome> {
    const RetrievalSample& sample = samples[row];
    KVSPAN_TRY(const auto tokens, encode_sample(tokenizer, sample, form));
    GenerateOptions options;
    options.max_tokens = most;
    options.enough = [&](const std::string& text) {
      return match_score(match, text, sample.answers) == 1.0;
    };
    KVSPAN_TRY(std::string text, greedy_answer(engine, tokenizer, cache, tokens, options));
    const double score = match_score(match, text, sample.answers);
    return RowOutcome{{{score}}, std::move(text)};
  };
}

}  // namespace kvspan
