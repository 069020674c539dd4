// SPDX-License-Identifier: Apache-2.0
// RULER's vt: VAR A = 12345, VAR B = VAR A, ... in noise.
#include "base/fail.h"
#include "eval/haystack.h"
#include "eval/random_text.h"
#include "eval/retrieval_generators.h"

namespace kvspan {
namespace {

constexpr std::int32_t kAnswerTokens = 30;
constexpr int kLetters = 5, kDigits = 5;

}  // namespace

RetrievalTask variable_tracking_task(std::string name, const ChainOptions& options) {
  RetrievalTask task;
  task.name = std::move(name);
  task.answer_tokens = kAnswerTokens;
  task.least_units = options.hops + 1;
  task.make = [options](std::size_t units, std::size_t, Random& random) {
    RetrievalSample out;
    std::vector<std::string> names, values, lines(units, std::string(kNoiseText));
    for (std::size_t c = 0; c < options.chains; ++c) {
      std::vector<std::string> chain;
      const std::string value = unlike(values, [&] { return random_number(kDigits, random); });
      std::string last;
      for (std::size_t hop = 0; hop <= options.hops; ++hop) {
        std::string variable = unlike(names, [&] { return random_letters('A', kLetters, random); });
        chain.push_back(hop == 0 ? fmt::format("VAR {} = {}", variable, value)
                                 : fmt::format("VAR {} = VAR {} ", variable, last));
        last = std::move(variable);
      }
      lines = hide_between(std::move(lines), chain, random);
    }
    out.answers.assign(names.begin(),
                       names.begin() + static_cast<std::ptrdiff_t>(options.hops + 1));
    out.prompt = fmt::format(
        "Memorize and track the chain(s) of variable assignment hidden in the following "
        "text.\n\n{}\nQuestion: Find all variables that are assigned the value {} in the text "
        "above.",
        join(lines, "\n"), values.front());
    out.answer_prefix = fmt::format(
        " Answer: According to the chain(s) of variable assignment in the text above, {} variables "
        "are assigned the value {}, they are: ",
        options.hops + 1, values.front());
    return out;
  };
  return task;
}

}  // namespace kvspan
