// SPDX-License-Identifier: Apache-2.0
// Rows of tasks from JSON lines. Whatever is wrong with a row is told with file and line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "kvspan/result.h"

namespace kvspan {

// One possible answer of a question.
struct ChoiceBranch {
  std::string context, continuation;
  double characters = 0.0;  // of the answer without the space before it: what acc_norm divides by
};
struct ChoiceRow {
  std::vector<ChoiceBranch> branches;  // at least 2
  std::size_t gold = 0;
};
// {"query": text, "choices": [text...], "gold": index}: each choice follows the query after a
// space; or {"contexts": [text...], "continuation": text, "gold": index}: the same text follows
// each context, as it is. `source` names the text in errors.
Result<std::vector<ChoiceRow>> parse_choice_rows(std::string_view text, std::string_view source);

struct TargetRow {
  std::string prompt, target;
};
// {"prompt": text, "target": text}; the target follows the prompt as it is.
Result<std::vector<TargetRow>> parse_target_rows(std::string_view text, std::string_view source);

// A question on passages.
struct DocumentQuestion {
  std::string question;
  std::vector<std::string> answers;      // any of them is right
  std::vector<std::string> documents;    // that the answer is found in
  std::vector<std::string> distractors;  // of the same article
};
// {"title": text, "context": text, "question": text, "answers": [text...]}
Result<std::vector<DocumentQuestion>> parse_squad_rows(std::string_view text,
                                                       std::string_view source);
// HotpotQA's own file, one array: {"question": text, "answer": text, "context": [[title,
// [sentence...]]...]}
Result<std::vector<DocumentQuestion>> parse_hotpotqa(std::string_view text,
                                                     std::string_view source);

// A row of LongBench.
struct LongBenchRow {
  std::string dataset, input, context;
  std::vector<std::string> answers;  // the best one counts
  std::vector<std::string> classes;  // of a classification, else empty
};
// LongBench's own files: {"dataset": text, "input": text, "context": text, "answers": [text...],
// "all_classes": [text...] or null}; other keys are ignored.
Result<std::vector<LongBenchRow>> parse_longbench_rows(std::string_view text,
                                                       std::string_view source);

}  // namespace kvspan
