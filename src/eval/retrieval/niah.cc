// SPDX-License-Identifier: Apache-2.0
// Needles in a haystack, in all the variants of RULER.
#include "base/fail.h"
#include "eval/retrieval/haystack.h"
#include "eval/retrieval/random_text.h"
#include "eval/retrieval/retrieval_generators.h"

namespace kvspan {
namespace {

using Name = NiahOptions::Name;
using Haystack = NiahOptions::Haystack;

constexpr std::int32_t kNiahAnswerTokens = 128;

std::string random_name(Name kind, const RetrievalData& data, Random& random) {
  const auto any = [&](const std::vector<std::string>& words) {
    return words[random.below(static_cast<std::uint32_t>(words.size()))];
  };
  if (kind == Name::kNumbers) return random_number(7, random);
  if (kind == Name::kUuids) return random_uuid(random);
  const std::string adjective = any(data.adjectives);
  return adjective + "-" + any(data.nouns);
}

std::string_view plural_of(Name kind) {
  if (kind == Name::kNumbers) return "numbers";
  return kind == Name::kUuids ? "uuids" : "words";
}

std::string needle(Name kind, const std::string& key, const std::string& value) {
  return fmt::format("One of the special magic {} for {} is: {}.", plural_of(kind), key, value);
}

// "a", "a, and b", "a, b, and c".
std::string listed(const std::vector<std::string>& names) {
  if (names.size() == 1) return names.front();
  return join({names.begin(), names.end() - 1}, ", ") + ", and " + names.back();
}

}  // namespace

RetrievalTask niah_task(std::string name, const NiahOptions& options, const RetrievalData& data) {
  RetrievalTask task;
  task.name = std::move(name);
  task.answer_tokens = kNiahAnswerTokens;
  task.make = [options, &data](std::size_t units, std::size_t, Random& random) {
    std::vector<std::string> keys, values, needles;  // values: those of the first key first
    for (std::size_t k = 0; k < options.key_count; ++k) {
      const std::string key = unlike(keys, [&] { return random_name(options.keys, data, random); });
      for (std::size_t v = 0; v < options.values_per_key; ++v) {
        const std::string value =
            unlike(values, [&] { return random_name(options.values, data, random); });
        needles.push_back(needle(options.values, key, value));
      }
    }
    RetrievalSample out;
    std::vector<std::string> queries;
    for (const std::size_t k : draw(options.asked, options.key_count, random)) {
      queries.push_back(keys[k]);
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(k * options.values_per_key);
      out.answers.insert(out.answers.end(), first,
                         first + static_cast<std::ptrdiff_t>(options.values_per_key));
    }
    shuffle(needles, random);
    std::string context;
    if (options.haystack == Haystack::kProse) {
      context = hide_at_depths(sentences_of(first_words(data.haystack, units)), needles, random);
    } else {
      std::vector<std::string> lines(units, std::string(kNoiseText));
      if (options.haystack == Haystack::kNeedles) {
        for (std::string& line : lines) {
          const std::string key =
              unlike(keys, [&] { return random_name(options.keys, data, random); });
          const std::string value =
              unlike(values, [&] { return random_name(options.values, data, random); });
          line = needle(options.values, key, value);
        }
      }
      context = join(hide_between(std::move(lines), needles, random), "\n");
    }
    const bool one = out.answers.size() == 1;
    std::string_view kind = plural_of(options.values);
    if (one) kind.remove_suffix(1);
    const std::string query = listed(queries);
    out.prompt = fmt::format(
        "{} special magic {} {} hidden within the following text. Make sure to memorize it. I will "
        "quiz you about the {} afterwards.\n{}\nWhat {} the special magic {} for {} mentioned in "
        "the provided text?",
        one ? "A" : "Some", kind, one ? "is" : "are", kind, context, one ? "is" : "are all", kind,
        query);
    out.answer_prefix =
        fmt::format(" The special magic {} for {} mentioned in the provided text {}", kind, query,
                    one ? "is" : "are");
    return out;
  };
  // Lines are chosen to stand before: as many as there are needles.
  if (options.haystack != Haystack::kProse) {
    task.least_units = options.key_count * options.values_per_key;
  }
  return task;
}

}  // namespace kvspan
