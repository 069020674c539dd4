// SPDX-License-Identifier: Apache-2.0
// RULER's cwe. Beyond the words that data/tasks has (some 8,600, enough for about 130K tokens) the
// list does not grow.
#include <algorithm>
#include <iterator>

#include "base/fail.h"
#include "eval/retrieval/random_text.h"
#include "eval/retrieval/retrieval_generators.h"

namespace kvspan {
namespace {

constexpr std::int32_t kCommonAnswerTokens = 120;
constexpr std::size_t kCommon = 10;
constexpr std::size_t kLongPrompt = 4096;

constexpr std::string_view kQuestion =
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n{context}\nQuestion: What are the 10 most common "
    "words in the above list?";
constexpr std::string_view kAnswer =
    " Answer: The top 10 words that appear most often in the list are:";

// How often words appear.
struct Repeats {
  std::size_t common, uncommon;
};

std::string numbered(const std::vector<std::string>& words) {
  std::vector<std::string> items;
  for (const std::string& word : words) {
    items.push_back(fmt::format("{}. {}", items.size() + 1, word));
  }
  return join(items, " ");
}

struct WordList {
  std::string text;
  std::vector<std::string> common;
};
WordList word_list(const std::vector<std::string>& vocabulary, std::size_t count, Repeats repeats,
                   Random& random) {
  WordList out;
  std::vector<std::string> all;
  for (const std::size_t i : draw(count, vocabulary.size(), random)) {
    const bool is_common = out.common.size() < kCommon;
    if (is_common) out.common.push_back(vocabulary[i]);
    all.insert(all.end(), is_common ? repeats.common : repeats.uncommon, vocabulary[i]);
  }
  shuffle(all, random);
  out.text = numbered(all);
  return out;
}

}  // namespace

RetrievalTask common_words_task(std::string name, std::size_t length, const RetrievalData& data) {
  std::vector<std::string> words;
  for (const auto* list : {&data.nouns, &data.adjectives, &data.verbs}) {
    std::copy(list->begin(), list->end(), std::back_inserter(words));
  }
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  const bool is_long = length >= kLongPrompt;
  const Repeats repeats = is_long ? Repeats{30, 3} : Repeats{6, 1};
  const Repeats example_repeats = is_long ? Repeats{10, 3} : Repeats{3, 1};
  const std::size_t example_words = is_long ? 40 : 20;
  RetrievalTask task;
  task.name = std::move(name);
  task.answer_tokens = kCommonAnswerTokens;
  task.least_units = kCommon + 1;
  task.most_units = words.size();
  task.make = [=](std::size_t units, std::size_t, Random& random) {
    const WordList example = word_list(words, example_words, example_repeats, random);
    const WordList list = word_list(words, units, repeats, random);
    RetrievalSample out;
    out.prompt = fmt::format(
        "{}{} {}\n{}", filled(std::string(kQuestion), {{"context", example.text}}), kAnswer,
        numbered(example.common), filled(std::string(kQuestion), {{"context", list.text}}));
    out.answer_prefix = kAnswer;
    out.answers = list.common;
    return out;
  };
  return task;
}

}  // namespace kvspan
