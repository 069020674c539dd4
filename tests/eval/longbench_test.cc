// SPDX-License-Identifier: Apache-2.0
// Scores against the Python packages that LongBench's own scripts call (fixtures/longbench), and
// prompts and truncation by hand.
#include "eval/tasks/longbench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "eval/retrieval/python_words.h"
#include "io/atomic_file.h"
#include "io/sha256.h"

namespace kvspan::testing {
namespace {

nlohmann::json fixture(const std::string& name) {
  const auto bytes =
      read_file(std::string(KVSPAN_SOURCE_DIR "/tests/eval/fixtures/longbench/") + name).value();
  return nlohmann::json::parse(
      std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

TEST(LongBench, ScoresAsThePythonPackagesDo) {
  const auto cases = fixture("scores.json");
  ASSERT_GE(cases.size(), 25u);
  for (const auto& one : cases) {
    const auto task = longbench_task(one["dataset"].get<std::string>());
    ASSERT_TRUE(task);
    LongBenchRow row;
    row.answers = one["answers"].get<std::vector<std::string>>();
    if (!one["all_classes"].is_null()) {
      row.classes = one["all_classes"].get<std::vector<std::string>>();
    }
    // The same formulas in double precision.
    EXPECT_NEAR(longbench_score(**task, row, one["answer"].get<std::string>()),
                one["score"].get<double>(), 1e-12)
        << one.dump();
  }
}

// An answer can end within a character. Its bytes are no spaces, whatever they would mean alone.
TEST(LongBench, BytesThatAreNoUtf8StayInTheirWord) {
  EXPECT_EQ(words_of("a\xc2\xa0"
                     "b c\xa0 d\xe2\x80"),
            (Words{"a", "b", "c\xa0", "d\xe2\x80"}));
  EXPECT_EQ(normalised_words("The\xa0"), (Words{"\xa0"}));
}

// Prompts and answer lengths are those of the original's configuration, to the byte.
TEST(LongBench, AsksAsTheOriginalsConfigurationSays) {
  const auto config = fixture("config.json");
  EXPECT_EQ(config.size(), all_longbench_tasks().size());
  for (const auto& [name, expected] : config.items()) {
    const auto task = longbench_task(name);
    ASSERT_TRUE(task) << name;
    Sha256 hash;
    hash.add(std::as_bytes(std::span((*task)->prompt)));
    EXPECT_EQ(hash.finish(), expected["prompt_sha256"]) << name;
    EXPECT_EQ((*task)->answer_tokens, expected["answer_tokens"]) << name;
    // Few-shot and code tasks are asked without the chat template, the former for one line.
    const bool few_shot = name == "trec" || name == "triviaqa" || name == "samsum";
    EXPECT_EQ((*task)->first_line, few_shot) << name;
    EXPECT_EQ((*task)->plain, few_shot || name == "lcc" || name == "repobench-p") << name;
  }
}

TEST(LongBench, TasksOfTheEvenSubsetAreTheSame) {
  EXPECT_EQ(*longbench_task("qasper_e"), *longbench_task("qasper"));
  EXPECT_TRUE(longbench_task("multifieldqa_en"));
  const auto unknown = longbench_task("hotpot_qa");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("did you mean 'hotpotqa'"), std::string::npos)
      << unknown.error().message;
}

TEST(LongBench, PromptsTakeContextAndInputAsTheyAre) {
  const LongBenchRow row{"trec", "Question: {context}?\nType:", "examples {input}", {"x"}, {}};
  EXPECT_EQ(longbench_prompt(**longbench_task("trec"), row),
            "Please determine the type of the question below. Here are some examples of "
            "questions.\n\nexamples {input}\nQuestion: {context}?\nType:");
  EXPECT_EQ(all_longbench_tasks().size(), 16u);
  for (const LongBenchTask& task : all_longbench_tasks()) {
    EXPECT_NE(task.prompt.find("{context}"), std::string_view::npos) << task.name;
  }
  const auto unknown = longbench_task("dureader");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("hotpotqa"), std::string::npos);
}

TEST(LongBench, ALongPromptLosesItsMiddle) {
  EXPECT_EQ(without_middle({1, 2, 3, 4, 5, 6, 7}, 4), (std::vector<Token>{1, 2, 6, 7}));
  EXPECT_EQ(without_middle({1, 2, 3, 4, 5, 6, 7}, 5), (std::vector<Token>{1, 2, 6, 7}));
  EXPECT_EQ(without_middle({1, 2, 3}, 3), (std::vector<Token>{1, 2, 3}));
}

TEST(LongBench, RowsAreReadAsTheyArePublished) {
  const auto rows = parse_longbench_rows(
      R"({"input": "", "context": "c", "answers": ["x"], "length": 3, "dataset": "lcc", "language": "java", "all_classes": null, "_id": "1"})"
      "\n"
      R"({"input": "i", "context": "c", "answers": ["x"], "dataset": "trec", "all_classes": ["x", "y"]})",
      "file");
  ASSERT_TRUE(rows) << rows.error().message;
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_TRUE((*rows)[0].classes.empty());
  EXPECT_EQ((*rows)[1].classes.size(), 2u);
  const auto bad =
      parse_longbench_rows(R"({"dataset": "trec", "input": "i", "answers": ["x"]})", "f");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().message, "'f' line 1: 'context' is missing");
}

}  // namespace
}  // namespace kvspan::testing
