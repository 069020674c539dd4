// SPDX-License-Identifier: Apache-2.0
// Tasks that ask for something hidden in a long prompt. Prompts are generated, seeded, as long as
// asked for; answers count where they appear in what the model goes on to write, as in RULER.
// Source: Hsieh et al., RULER: What's the Real Context Size of Your Long-Context Language Models?,
// 2024. Nothing here knows a model; tokens are counted by whoever encodes.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "eval/tasks/task_rows.h"

namespace kvspan {

struct RetrievalSample {
  std::string prompt;
  std::string answer_prefix;  // the beginning of the answer, which the model goes on from
  std::vector<std::string> answers;
};

// What prompts are made of; data/tasks holds it.
struct RetrievalData {
  std::vector<std::string> adjectives, nouns, verbs;
  std::string haystack;  // prose
  std::vector<DocumentQuestion> squad, hotpotqa;
};

struct RetrievalTask {
  enum class Match {
    kAll,  // the share of the answers that appear
    kAny,  // whether one appears
  };
  std::string name;
  std::int32_t answer_tokens = 0;
  Match match = Match::kAll;
  // The prompt grows by units: sentences, words, pairs or documents.
  std::size_t least_units = 1;
  std::size_t most_units = 0;  // 0: any
  // Prompt number `index`. Equal random numbers give equal prompts, for a const data that outlives
  // it.
  std::function<RetrievalSample(std::size_t units, std::size_t index, Random& random)> make;
};

// 0..1; letters of the ASCII alphabet match in either case.
double match_score(RetrievalTask::Match match, std::string_view text,
                   const std::vector<std::string>& answers);

// Tokens that a sample takes as the model reads it.
using CountTokens = std::function<Result<std::size_t>(const RetrievalSample&)>;

struct SampleOptions {
  std::size_t length = 4096;  // of prompt and answer together
  std::size_t count = 1;
  std::uint64_t seed = 0;
};
// Samples of as many units each as fit into `length`. The same options give the same samples, and the
// first of many are those of fewer. Fails where not even the shortest prompt fits.
Result<std::vector<RetrievalSample>> make_samples(const RetrievalTask& task,
                                                  const SampleOptions& options,
                                                  const CountTokens& count);

}  // namespace kvspan
