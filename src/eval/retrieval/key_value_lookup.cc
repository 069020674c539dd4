// SPDX-License-Identifier: Apache-2.0
#include "base/fail.h"
#include "eval/retrieval/random_text.h"
#include "eval/retrieval/retrieval_generators.h"

namespace kvspan {

RetrievalTask key_value_lookup_task() {
  RetrievalTask task;
  task.name = "kvlookup";
  task.answer_tokens = 64;
  task.make = [](std::size_t units, std::size_t, Random& random) {
    const double place = random.uniform();
    std::vector<std::string> names, records;
    for (std::size_t i = 0; i < units; ++i) {
      const std::string key = unlike(names, [&] { return random_uuid(random); });
      const std::string value = unlike(names, [&] { return random_uuid(random); });
      records.push_back(fmt::format("\"{}\": \"{}\"", key, value));
    }
    const auto asked = static_cast<std::size_t>(place * static_cast<double>(units));
    RetrievalSample out;
    out.prompt = fmt::format(
        "Extract the value corresponding to the specified key in the JSON object below.\n\n"
        "JSON data:\n{{{}}}\n\nKey: \"{}\"",
        join(records, ",\n "), names[2 * asked]);
    out.answer_prefix = "\nCorresponding value:";
    out.answers = {names[2 * asked + 1]};
    return out;
  };
  return task;
}

}  // namespace kvspan
