// SPDX-License-Identifier: Apache-2.0
// Generated prompts: what is hidden is there once, the question asks for it, and nothing else
// would answer it.
#include "eval/retrieval/retrieval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "eval/retrieval/haystack.h"
#include "eval/retrieval/random_text.h"
#include "eval/retrieval/ruler.h"
#include "io/atomic_file.h"

namespace kvspan::testing {
namespace {

std::string task_file(const std::string& name) {
  const auto bytes = read_file(std::string(KVSPAN_SOURCE_DIR "/data/tasks/") + name).value();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const RetrievalData& data() {
  static const RetrievalData kData = [] {
    RetrievalData out;
    out.adjectives = lines_of(task_file("adjectives.txt"));
    out.nouns = lines_of(task_file("nouns.txt"));
    out.verbs = lines_of(task_file("verbs.txt"));
    out.haystack = task_file("haystack.txt");
    out.squad = parse_squad_rows(task_file("squad.jsonl"), "squad").value();
    out.hotpotqa = out.squad;
    return out;
  }();
  return kData;
}

// Words and marks, about as many as a tokenizer finds.
Result<std::size_t> count_words(const RetrievalSample& sample) {
  std::size_t count = 0;
  bool in_word = false;
  for (const char c : sample.prompt + sample.answer_prefix) {
    const bool letter = std::isalnum(static_cast<unsigned char>(c)) != 0;
    count += letter ? !in_word : !std::isspace(static_cast<unsigned char>(c));
    in_word = letter;
  }
  return count;
}

std::vector<RetrievalSample> samples_of(const RetrievalTask& task, std::size_t length = 4096,
                                        std::size_t count = 5, std::uint64_t seed = 1) {
  auto samples = make_samples(task, {length, count, seed}, count_words);
  EXPECT_TRUE(samples) << samples.error().message;
  return std::move(*samples);
}

std::size_t occurrences(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

std::vector<RetrievalTask> all_tasks(std::size_t length) {
  std::vector<RetrievalTask> out{passkey_task(data()), key_value_lookup_task()};
  for (const RulerTaskInfo& info : all_ruler_tasks()) {
    out.push_back(ruler_task(info.name, length, data()).value());
  }
  return out;
}

TEST(RetrievalTasks, FillTheirLengthAndNoMore) {
  for (const std::size_t length : {1000u, 6000u}) {
    for (const RetrievalTask& task : all_tasks(length)) {
      for (const RetrievalSample& sample : samples_of(task, length)) {
        const std::size_t tokens =
            count_words(sample).value() + static_cast<std::size_t>(task.answer_tokens);
        EXPECT_LE(tokens, length) << task.name;
        // The next document of SQuAD, of which the longest has some 700 words, did not fit.
        EXPECT_GE(tokens, length - (task.match == RetrievalTask::Match::kAny ? 700 : length / 10))
            << task.name;
      }
    }
  }
}

TEST(RetrievalTasks, AreSeeded) {
  for (const RetrievalTask& task : all_tasks(1500)) {
    const auto a = samples_of(task, 1500, 2, 5), b = samples_of(task, 1500, 4, 5),
               c = samples_of(task, 1500, 2, 6);
    EXPECT_EQ(a[1].prompt, b[1].prompt) << task.name;  // the first of many are those of fewer
    EXPECT_EQ(a[1].answers, b[1].answers) << task.name;
    EXPECT_NE(a[0].prompt, c[0].prompt) << task.name;
    EXPECT_NE(a[0].prompt, a[1].prompt) << task.name;
  }
}

TEST(RetrievalTasks, AnswersAreInTheTextAndNotInTheQuestion) {
  for (const RetrievalTask& task : all_tasks(3000)) {
    for (const RetrievalSample& sample : samples_of(task, 3000)) {
      ASSERT_FALSE(sample.answers.empty());
      EXPECT_EQ(match_score(task.match, sample.prompt, sample.answers), 1.0) << task.name;
      EXPECT_EQ(match_score(RetrievalTask::Match::kAny, sample.answer_prefix, sample.answers), 0.0)
          << task.name;
    }
  }
}

TEST(RetrievalTasks, RefuseALengthThatIsTooShort) {
  const auto found =
      make_samples(ruler_task("niah_single_1", 100, data()).value(), {100, 1, 0}, count_words);
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().message.find("niah_single_1"), std::string::npos);
  EXPECT_NE(found.error().message.find("128"), std::string::npos);
}

TEST(Ruler, UnknownTasksGetTheNearestName) {
  const auto task = ruler_task("niah_multikey", 4096, data());
  ASSERT_FALSE(task);
  EXPECT_NE(task.error().message.find("did you mean 'niah_multikey_1'"), std::string::npos);
  EXPECT_FALSE(ruler_task("qa_2", 4096, RetrievalData{}));
}

struct Needle {
  std::string kind, key, value;
};
std::vector<Needle> needles_in(const std::string& prompt) {
  static const std::regex kNeedle(
      "One of the special magic (\\w+) for ([^ ]+(?: [^ ]+)*?) is: ([^ ]+)\\.");
  std::vector<Needle> out;
  for (std::sregex_iterator it(prompt.begin(), prompt.end(), kNeedle), end; it != end; ++it) {
    out.push_back({(*it)[1], (*it)[2], (*it)[3]});
  }
  return out;
}

TEST(Niah, HidesWhatTheBenchmarkHides) {
  struct Expected {
    const char* name;
    std::size_t needles;  // 0: as many as fit
    std::size_t answers;
    const char* value;
    bool noise;
  };
  for (const Expected& expected :
       {Expected{"niah_single_1", 1, 1, "[1-9][0-9]{6}", true},
        Expected{"niah_single_2", 1, 1, "[1-9][0-9]{6}", false},
        Expected{"niah_single_3", 1, 1,
                 "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", false},
        Expected{"niah_multikey_1", 4, 1, "[1-9][0-9]{6}", false},
        Expected{"niah_multikey_2", 0, 1, "[1-9][0-9]{6}", false},
        Expected{"niah_multikey_3", 0, 1,
                 "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", false},
        Expected{"niah_multivalue", 4, 4, "[1-9][0-9]{6}", false},
        Expected{"niah_multiquery", 4, 4, "[1-9][0-9]{6}", false}}) {
    SCOPED_TRACE(expected.name);
    std::set<std::size_t> depths;
    for (const auto& sample :
         samples_of(ruler_task(expected.name, 3000, data()).value(), 3000, 12)) {
      const auto needles = needles_in(sample.prompt);
      if (expected.needles > 0) {
        EXPECT_EQ(needles.size(), expected.needles);
      } else {
        EXPECT_GT(needles.size(), 20u);
      }
      EXPECT_EQ(sample.answers.size(), expected.answers);
      EXPECT_EQ(occurrences(sample.prompt, kNoiseText) > 10, expected.noise);
      std::set<std::string> keys, values;
      for (const Needle& needle : needles) {
        keys.insert(needle.key);
        values.insert(needle.value);
        EXPECT_TRUE(std::regex_match(needle.value, std::regex(expected.value))) << needle.value;
        // The question names the keys whose values are the answers, and no others.
        const bool asked = sample.answer_prefix.find(needle.key) != std::string::npos;
        const bool answer = std::find(sample.answers.begin(), sample.answers.end(), needle.value) !=
                            sample.answers.end();
        EXPECT_EQ(asked, answer) << needle.key;
      }
      EXPECT_EQ(values.size(), needles.size());
      EXPECT_EQ(keys.size(), std::string(expected.name) == "niah_multivalue" ? 1 : needles.size());
      for (const std::string& answer : sample.answers) {
        EXPECT_EQ(occurrences(sample.prompt, answer), 1u);
      }
      depths.insert(sample.prompt.find(sample.answers.front()) * 10 / sample.prompt.size());
    }
    EXPECT_GE(depths.size(), 4u);  // tenths of the prompt, of twelve prompts
  }
}

TEST(Niah, SpeaksAsTheBenchmarkSpeaks) {
  // A row that NVIDIA's own generator wrote begins and ends like this.
  const auto sample =
      samples_of(ruler_task("niah_multikey_3", 2000, data()).value(), 2000, 1).front();
  const std::string begin =
      "A special magic uuid is hidden within the following text. Make sure to memorize it. I will "
      "quiz you about the uuid afterwards.\nOne of the special magic uuids for ";
  EXPECT_EQ(sample.prompt.substr(0, begin.size()), begin);
  const std::string whole = sample.prompt + sample.answer_prefix;
  const std::regex end(
      "\\.\nWhat is the special magic uuid for ([0-9a-f-]{36}) mentioned in the provided text\\? "
      "The "
      "special magic uuid for ([0-9a-f-]{36}) mentioned in the provided text is");
  std::smatch match;
  const std::string tail = whole.substr(whole.rfind(".\nWhat"));
  ASSERT_TRUE(std::regex_match(tail, match, end)) << tail;
  EXPECT_EQ(match[1], match[2]);
  const auto many =
      samples_of(ruler_task("niah_multiquery", 2000, data()).value(), 2000, 1).front();
  EXPECT_EQ(many.prompt.rfind("Some special magic numbers are hidden", 0), 0u);
  EXPECT_NE(many.prompt.find("What are all the special magic numbers for "), std::string::npos);
  EXPECT_EQ(occurrences(many.answer_prefix, ", "), 3u);
  EXPECT_EQ(occurrences(many.answer_prefix, ", and "), 1u);
  EXPECT_EQ(many.answer_prefix.substr(many.answer_prefix.size() - 4), " are");
}

TEST(VariableTracking, IsOneChainInOrder) {
  for (const auto& sample : samples_of(ruler_task("vt", 2000, data()).value(), 2000)) {
    ASSERT_EQ(sample.answers.size(), 5u);
    std::smatch match;
    ASSERT_TRUE(
        std::regex_search(sample.prompt, match, std::regex("VAR ([A-Z]{5}) = ([0-9]{5})\n")));
    EXPECT_EQ(occurrences(sample.prompt, "VAR " + sample.answers[0] + " = " + match[2].str()), 1u);
    EXPECT_EQ(match[1], sample.answers[0]);
    EXPECT_NE(sample.answer_prefix.find("5 variables are assigned the value " + match[2].str()),
              std::string::npos);
    std::size_t at = static_cast<std::size_t>(match.position(0));
    for (std::size_t i = 1; i < 5; ++i) {
      const std::size_t next = sample.prompt.find("VAR " + sample.answers[i] + " = VAR " +
                                                  sample.answers[i - 1] + " \n");
      ASSERT_NE(next, std::string::npos);
      EXPECT_GT(next, at);
      at = next;
    }
    EXPECT_EQ(occurrences(sample.prompt, "VAR "), 18u);  // nine of the chain, nine of the example
  }
}

TEST(VariableTracking, ComesAfterASolvedExample) {
  std::set<std::string> values;
  for (const auto& sample : samples_of(ruler_task("vt", 2000, data()).value(), 2000)) {
    const std::size_t second = sample.prompt.find("Memorize and track", 1);
    ASSERT_NE(second, std::string::npos);
    const std::string example = sample.prompt.substr(0, second);
    EXPECT_EQ(sample.prompt.find("Memorize and track", second + 1), std::string::npos);
    // As NVIDIA's generator writes it: two spaces before the names, an empty line after them.
    std::smatch match;
    ASSERT_TRUE(std::regex_search(
        example, match,
        std::regex("Question: Find all variables that are assigned the value (\\d{5}) in the text "
                   "above\\. Answer: According to the chain\\(s\\) of variable assignment in the "
                   "text above, 5 variables are assigned the value (\\d{5}), they are:  "
                   "((?:[A-Z]{3} ){4}[A-Z]{3})\n\n$")));
    EXPECT_EQ(match[1], match[2]);
    values.insert(match[1]);
    // The solution is right.
    const std::string solution = match[3];
    std::string last;
    for (std::size_t i = 0; i < 5; ++i) {
      const std::string name = solution.substr(4 * i, 3);
      EXPECT_EQ(occurrences(example, "VAR " + name + " = " +
                                         (i == 0 ? match[1].str() + "\n" : "VAR " + last + " \n")),
                1u);
      last = name;
    }
    EXPECT_EQ(occurrences(example, kNoiseText), 14u);
  }
  EXPECT_GT(values.size(), 1u);
}

TEST(CommonWords, AreTheTenMostFrequent) {
  for (const std::size_t length : {2000u, 6000u}) {
    for (const auto& sample : samples_of(ruler_task("cwe", length, data()).value(), length)) {
      ASSERT_EQ(sample.answers.size(), 10u);
      // The list asked about is the second; the first is the example, with its solution.
      const std::string list = sample.prompt.substr(sample.prompt.rfind("\n1. ") + 1);
      EXPECT_EQ(occurrences(sample.prompt, "The top 10 words"), 1u);
      std::map<std::string, int> counts;
      const std::regex item("\\d+\\. (.+?)(?= \\d+\\. |\n)");
      for (std::sregex_iterator it(list.begin(), list.end(), item), end; it != end; ++it) {
        ++counts[(*it)[1]];
      }
      const int common = length < 4096 ? 6 : 30, uncommon = length < 4096 ? 1 : 3;
      for (const auto& [word, count] : counts) {
        const bool answer =
            std::find(sample.answers.begin(), sample.answers.end(), word) != sample.answers.end();
        EXPECT_EQ(count, answer ? common : uncommon) << word;
      }
      EXPECT_GT(counts.size(), 50u);
    }
  }
}

TEST(FrequentWords, HasAWordForEveryFiftyTokensOfThePrompt) {
  // 4,050 tokens less 50 of the answer: ranks 1 to 80, of which those that appear at all are shown.
  const RetrievalTask task = ruler_task("fwe", 4050, data()).value();
  Random random(3);
  const RetrievalSample sample = task.make(200000, 0, random);  // the last appears 18 times
  const std::size_t begin = sample.prompt.find("coded words. ") + 13;
  std::istringstream text(sample.prompt.substr(begin, sample.prompt.find('\n') - begin));
  std::set<std::string> words;
  for (std::string word; text >> word;) words.insert(word);
  EXPECT_EQ(words.size(), 80u);
}

TEST(FrequentWords, FollowTheZetaDistribution) {
  for (const auto& sample : samples_of(ruler_task("fwe", 4000, data()).value(), 4000)) {
    std::map<std::string, int> counts;
    const std::size_t begin = sample.prompt.find("coded words. ") + 13;
    const std::string text = sample.prompt.substr(begin, sample.prompt.find('\n') - begin);
    const std::regex word("[^ ]+");
    for (std::sregex_iterator it(text.begin(), text.end(), word), end; it != end; ++it) {
      ++counts[it->str()];
    }
    std::vector<std::pair<int, std::string>> ranked;
    for (const auto& [name, count] : counts) ranked.emplace_back(-count, name);
    std::sort(ranked.begin(), ranked.end());
    EXPECT_EQ(ranked[0].second, "...");
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(ranked[i + 1].second, sample.answers[i]);
      const double expected = -ranked[0].first / static_cast<double>((i + 2) * (i + 2));
      EXPECT_NEAR(-ranked[i + 1].first, expected, 1.0);
    }
    EXPECT_GT(ranked[4].first, ranked[3].first);  // the fifth is rarer than the fourth
  }
}

TEST(DocumentQa, AsksWhatOneOfItsDocumentsAnswers) {
  const auto samples = samples_of(ruler_task("qa_1", 3000, data()).value(), 3000, 20);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const DocumentQuestion& question = data().squad[i];
    EXPECT_EQ(occurrences(samples[i].prompt, question.documents.front()), 1u);
    EXPECT_NE(samples[i].prompt.find("\n\nQuestion: " + question.question), std::string::npos);
    EXPECT_EQ(samples[i].answers, question.answers);
    const std::size_t documents = occurrences(samples[i].prompt, "Document ");
    EXPECT_GE(documents, 5u);
    EXPECT_NE(samples[i].prompt.find("Document 1:\n"), std::string::npos);
    // Passages of the same article come before any other.
    std::size_t near = 0;
    for (const std::string& other : question.distractors) {
      near += samples[i].prompt.find(other) != std::string::npos;
    }
    EXPECT_EQ(near, std::min(question.distractors.size(), documents - 1)) << i;
  }
}

TEST(Passkey, IsSaidTwiceInOnePlace) {
  std::set<std::size_t> depths;
  for (const auto& sample : samples_of(passkey_task(data()), 2000, 20)) {
    const std::string& key = sample.answers.front();
    EXPECT_TRUE(std::regex_match(key, std::regex("[1-9][0-9]{4}")));
    EXPECT_EQ(occurrences(sample.prompt, key), 2u);
    EXPECT_EQ(occurrences(sample.prompt, "\nThe pass key is " + key + ". Remember it. " + key +
                                             " is the pass key.\n"),
              1u);
    depths.insert(sample.prompt.find(key) * 10 / sample.prompt.size());
  }
  EXPECT_GE(depths.size(), 6u);
}

TEST(KeyValueLookup, AsksForOnePairOfMany) {
  for (const auto& sample : samples_of(key_value_lookup_task(), 4000)) {
    const std::string key = sample.prompt.substr(sample.prompt.size() - 37, 36);
    EXPECT_EQ(occurrences(sample.prompt, "\"" + key + "\": \"" + sample.answers.front() + "\""),
              1u);
    EXPECT_EQ(occurrences(sample.prompt, sample.answers.front()), 1u);
    EXPECT_GT(occurrences(sample.prompt, "\": \""), 50u);
  }
}

TEST(MatchScore, IsRulers) {
  using enum RetrievalTask::Match;
  EXPECT_EQ(match_score(kAll, "it is 12 and Paris.", {"12", "PARIS"}), 1.0);
  EXPECT_EQ(match_score(kAll, "it is 12.", {"12", "Paris", "Rome", "x"}), 0.25);
  EXPECT_EQ(match_score(kAny, "in paris", {"Rome", "Paris"}), 1.0);
  EXPECT_EQ(match_score(kAny, "nowhere", {"Rome", "Paris"}), 0.0);
}

TEST(Sentences, EndWhereTheyEnd) {
  EXPECT_EQ(sentences_of(
                "Mr. Holmes sat. \"Who is J. H. Watson?\" he asked. It was 4.30 p.m. then! Yes."),
            (std::vector<std::string>{"Mr. Holmes sat.", "\"Who is J. H. Watson?\" he asked.",
                                      "It was 4.30 p.m. then!", "Yes."}));
  EXPECT_TRUE(sentences_of("").empty());
  EXPECT_EQ(first_words("a b\n c", 5), "a b c a b");
}

TEST(Draw, GivesDifferentOnes) {
  Random random(3);
  for (int i = 0; i < 50; ++i) {
    const auto found = draw(5, 9, random);
    EXPECT_EQ(std::set<std::size_t>(found.begin(), found.end()).size(), 5u);
    EXPECT_LT(*std::max_element(found.begin(), found.end()), 9u);
  }
}

}  // namespace
}  // namespace kvspan::testing
