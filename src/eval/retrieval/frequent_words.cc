// SPDX-License-Identifier: Apache-2.0
// RULER's fwe: word of rank k appears n / (zeta(2) k^2) times.
#include <algorithm>
#include <numbers>

#include "base/fail.h"
#include "eval/retrieval/random_text.h"
#include "eval/retrieval/retrieval_generators.h"

namespace kvspan {
namespace {

constexpr std::int32_t kFrequentAnswerTokens = 50;
constexpr int kWordLetters = 6;
constexpr std::size_t kTokensPerWord = 50;  // of the prompt, for each word of the vocabulary
// Below, the counts of ranks 4 and 5 can be equal: 165 / (1.645 * 16) = 6.3, 165 / (1.645 * 25) =
// 4.0.
constexpr std::size_t kLeastWords = 165;

}  // namespace

RetrievalTask frequent_words_task(std::string name, std::size_t length) {
  const std::size_t prompt = length - std::min<std::size_t>(length, kFrequentAnswerTokens);
  const std::size_t vocabulary = std::max<std::size_t>(8, prompt / kTokensPerWord);
  RetrievalTask task;
  task.name = std::move(name);
  task.answer_tokens = kFrequentAnswerTokens;
  task.least_units = kLeastWords;
  task.make = [vocabulary](std::size_t units, std::size_t, Random& random) {
    std::vector<std::string> ranked, words;
    for (std::size_t rank = 1; rank <= vocabulary; ++rank) {
      const std::string word =
          unlike(ranked, [&] { return random_letters('a', kWordLetters, random); });
      constexpr double kZeta2 = std::numbers::pi * std::numbers::pi / 6.0;
      const double share = 1.0 / (kZeta2 * static_cast<double>(rank * rank));
      const auto count = static_cast<std::size_t>(static_cast<double>(units) * share);
      words.insert(words.end(), count, rank == 1 ? "..." : word);
    }
    shuffle(words, random);
    RetrievalSample out;
    out.prompt = fmt::format(
        "Read the following coded text and track the frequency of each coded word. Find the three "
        "most frequently appeared coded words. {}\nQuestion: Do not provide any explanation. "
        "Please "
        "ignore the dots '....'. What are the three most frequently appeared words in the above "
        "coded text?",
        join(words, " "));
    out.answer_prefix =
        " Answer: According to the coded text above, the three most frequently appeared words are:";
    out.answers.assign(ranked.begin() + 1, ranked.begin() + 4);
    return out;
  };
  return task;
}

}  // namespace kvspan
