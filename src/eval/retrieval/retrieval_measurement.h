// SPDX-License-Identifier: Apache-2.0
// Retrieval tasks on a model: prompts as it reads them, answers as it writes them.
#pragma once

#include "eval/retrieval/retrieval.h"
#include "eval/study/row_measurement.h"
#include "llama/generate.h"
#include "llama/tokenizer.h"

namespace kvspan {

enum class PromptForm {
  kPlain,  // the text goes on with the answer's beginning
  kChat,   // the text is the user's turn, the answer's beginning the assistant's
};
// Fails for kChat where the model has no chat template, and as encoding does.
Result<std::vector<Token>> encode_sample(const Tokenizer& tokenizer, const RetrievalSample& sample,
                                         PromptForm form);

// What the model writes after `tokens`, always the most likely; `cache` is empty. Fails as decoding
// does, on logits that are not finite, and, when cancelled, with kCancelled.
Result<std::string> greedy_answer(Engine& engine, const Tokenizer& tokenizer, KvCache& cache,
                                  std::span<const Token> tokens, const GenerateOptions& options);

// One row for each sample and one metric, `score` (match_score). Answers are greedy; one that has
// scored all it can is not written to its end. `samples` have to outlive the scorer.
ScoreRow retrieval_scorer(Engine& engine, const Tokenizer& tokenizer, const RetrievalTask& task,
                          std::span<const RetrievalSample> samples, PromptForm form);

}  // namespace kvspan
