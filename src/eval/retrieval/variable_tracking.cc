// SPDX-License-Identifier: Apache-2.0
// RULER's vt: VAR A = 12345, VAR B = VAR A, ... in noise, after a solved example with names of
// three letters. RULER fits the example to 500 tokens; here it always has as many lines of noise as
// usual tokenizers fit into these.
#include <algorithm>

#include "base/fail.h"
#include "eval/retrieval/haystack.h"
#include "eval/retrieval/random_text.h"
#include "eval/retrieval/retrieval_generators.h"

namespace kvspan {
namespace {

constexpr std::int32_t kTrackingAnswerTokens = 30;
constexpr int kNameLetters = 5, kExampleLetters = 3, kDigits = 5;
constexpr std::size_t kExampleLines = 14;

// Chains in `units` lines of noise, names of `letters` letters; the first chain is asked for.
RetrievalSample hidden_chains(const ChainOptions& options, std::size_t units, int letters,
                              Random& random) {
  RetrievalSample out;
  std::vector<std::string> names, values, lines(units, std::string(kNoiseText));
  for (std::size_t c = 0; c < options.chains; ++c) {
    std::vector<std::string> chain;
    const std::string value = unlike(values, [&] { return random_number(kDigits, random); });
    std::string last;
    for (std::size_t hop = 0; hop <= options.hops; ++hop) {
      std::string variable = unlike(names, [&] { return random_letters('A', letters, random); });
      chain.push_back(hop == 0 ? fmt::format("VAR {} = {}", variable, value)
                               : fmt::format("VAR {} = VAR {} ", variable, last));
      last = std::move(variable);
    }
    lines = hide_between(std::move(lines), chain, random);
  }
  out.answers.assign(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(options.hops + 1));
  out.prompt = fmt::format(
      "Memorize and track the chain(s) of variable assignment hidden in the following "
      "text.\n\n{}\nQuestion: Find all variables that are assigned the value {} in the text above.",
      join(lines, "\n"), values.front());
  out.answer_prefix = fmt::format(
      " Answer: According to the chain(s) of variable assignment in the text above, {} variables "
      "are assigned the value {}, they are: ",
      options.hops + 1, values.front());
  return out;
}

}  // namespace

RetrievalTask variable_tracking_task(std::string name, const ChainOptions& options) {
  RetrievalTask task;
  task.name = std::move(name);
  task.answer_tokens = kTrackingAnswerTokens;
  task.least_units = options.hops + 1;
  task.make = [options](std::size_t units, std::size_t, Random& random) {
    const RetrievalSample example =
        hidden_chains(options, std::max(kExampleLines, options.hops + 1), kExampleLetters, random);
    RetrievalSample out = hidden_chains(options, units, kNameLetters, random);
    out.prompt = fmt::format("{}{} {}\n\n{}", example.prompt, example.answer_prefix,
                             join(example.answers, " "), out.prompt);
    return out;
  };
  return task;
}

}  // namespace kvspan
