// SPDX-License-Identifier: Apache-2.0
#include "base/fail.h"
#include "eval/retrieval/haystack.h"
#include "eval/retrieval/random_text.h"
#include "eval/retrieval/retrieval_generators.h"

namespace kvspan {

RetrievalTask passkey_task(const RetrievalData& data) {
  RetrievalTask task;
  task.name = "passkey";
  task.answer_tokens = 16;
  task.make = [sentences = sentences_of(first_words(data.haystack, 1 << 16))](
                  std::size_t units, std::size_t, Random& random) {
    RetrievalSample out;
    const std::string key = random_number(5, random);
    // The key stands after a uniformly random share of the text.
    const auto before = static_cast<std::size_t>(random.uniform() * static_cast<double>(units + 1));
    std::vector<std::string> parts[2];
    for (std::size_t i = 0; i < units; ++i) {
      parts[i < before ? 0 : 1].push_back(sentences[i % sentences.size()]);
    }
    out.prompt = fmt::format(
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
        "it. I will quiz you about the important information there.\n{}\nThe pass key is {}. "
        "Remember it. {} is the pass key.\n{}\nWhat is the pass key?",
        join(parts[0], " "), key, key, join(parts[1], " "));
    out.answer_prefix = " The pass key is";
    out.answers = {key};
    return out;
  };
  return task;
}

}  // namespace kvspan
