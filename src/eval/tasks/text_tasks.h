// SPDX-License-Identifier: Apache-2.0
// Tasks that compare log-likelihoods of given texts: multiple choice, last words, and whatever
// rows of prompt and target a user brings.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/study/row_measurement.h"
#include "eval/tasks/task_rows.h"
#include "llama/tokenizer.h"

namespace kvspan {

// What every row is scored by, and the function that does it. The scorer keeps the engine, encoded
// rows are its own.
struct TextTask {
  std::vector<Metric> metrics;
  std::size_t rows = 0;
  std::size_t truncated = 0;  // rows that lost their beginning to the model's context
  ScoreRow score;
};

// acc: the gold answer has the highest log-likelihood, the first of equals winning; acc_norm: after
// division by its characters (`normalised`); gold_nll: nats of the gold answer. A failure names
// `source` and the row.
Result<TextTask> choice_task(Engine& engine, const Tokenizer& tokenizer,
                             std::span<const ChoiceRow> rows, bool normalised,
                             std::string_view source);

// nll: nats per token of the targets; token_acc: share of their tokens that are the most likely
// ones; exact: share of rows where all are, so that greedy decoding gives the target.
Result<TextTask> target_task(Engine& engine, const Tokenizer& tokenizer,
                             std::span<const TargetRow> rows, std::string_view source);

// The same rows as LAMBADA counts them: acc is `exact`, ppl the perplexity of whole targets.
Result<TextTask> last_word_task(Engine& engine, const Tokenizer& tokenizer,
                                std::span<const TargetRow> rows, std::string_view source);

// The tasks that come with data, in data/tasks.
struct TextTaskInfo {
  enum class Kind { kChoice, kNormalisedChoice, kLastWord };
  std::string_view name;
  std::string_view summary;
  Kind kind;
};
std::span<const TextTaskInfo> all_text_tasks() noexcept;

// Parses `text` as the task's rows, keeps the first `limit` (0: all), and makes it ready.
Result<TextTask> make_text_task(const TextTaskInfo& info, Engine& engine,
                                const Tokenizer& tokenizer, std::string_view text,
                                std::string_view source, std::size_t limit);

}  // namespace kvspan
