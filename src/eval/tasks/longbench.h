// SPDX-License-Identifier: Apache-2.0
// LongBench's English and code tasks: prompts, lengths of answers and scores as its own scripts
// have them. A prompt that is too long loses its middle. Source: Bai et al., LongBench: A
// Bilingual, Multitask Benchmark for Long Context Understanding, 2024 (prompts: MIT). Its Chinese
// tasks need a segmentation into words, and are not here.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/retrieval/retrieval_measurement.h"
#include "eval/study/row_measurement.h"
#include "eval/tasks/longbench_scores.h"
#include "eval/tasks/task_rows.h"

namespace kvspan {

struct LongBenchTask {
  std::string_view name;
  std::string_view prompt;  // with {context} and {input}
  std::int32_t answer_tokens;
  double (*score)(std::string_view answer, const std::string& truth,
                  const std::vector<std::string>& classes);
  bool first_line;  // only the answer's first line counts
  bool plain;       // asked as plain text even of chat models
};
std::span<const LongBenchTask> all_longbench_tasks() noexcept;
// Fails, saying which there are.
Result<const LongBenchTask*> longbench_task(std::string_view name);

std::string longbench_prompt(const LongBenchTask& task, const LongBenchRow& row);
// The best score over the row's answers, 0..1.
double longbench_score(const LongBenchTask& task, const LongBenchRow& row, std::string_view answer);

// The first and the last half of `most` tokens, where there are more.
std::vector<Token> without_middle(std::vector<Token> tokens, std::size_t most);

// One row for each of `rows`, all of the task, and one metric, `score`. Prompt and answer take
// `length` tokens at most. Answers are greedy. `rows` have to outlive the scorer.
ScoreRow longbench_scorer(Engine& engine, const Tokenizer& tokenizer, const LongBenchTask& task,
                          std::span<const LongBenchRow> rows, std::int32_t length, PromptForm form);

}  // namespace kvspan
