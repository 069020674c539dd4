// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks/task_rows.h"

#include <gtest/gtest.h>

#include "eval/tasks/text_tasks.h"
#include "io/atomic_file.h"

namespace kvspan::testing {
namespace task_rows_test {

std::string task_file(const std::string& name) {
  const auto bytes = read_file(std::string(KVSPAN_SOURCE_DIR "/data/tasks/") + name).value();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(ChoiceRows, HaveBothLayouts) {
  const auto rows =
      parse_choice_rows(
          "{\"query\": \"Q\", \"choices\": [\"one\", \"zw\u00f6lf\"], \"gold\": 1}\n\n"
          "{\"contexts\": [\"A\", \"B\", \"C\"], \"continuation\": \" runs.\", \"gold\": 2}",
          "x")
          .value();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].branches[1].context, "Q");
  EXPECT_EQ(rows[0].branches[1].continuation, " zw\u00f6lf");
  EXPECT_EQ(rows[0].branches[1].characters, 5.0);  // of characters, not bytes
  EXPECT_EQ(rows[0].gold, 1u);
  ASSERT_EQ(rows[1].branches.size(), 3u);
  EXPECT_EQ(rows[1].branches[2].context, "C");
  EXPECT_EQ(rows[1].branches[2].continuation, " runs.");
}

TEST(ChoiceRows, AreRefusedWithFileAndLine) {
  const std::string good = "{\"query\": \"Q\", \"choices\": [\"a\", \"b\"], \"gold\": 0}\n";
  const auto refused = [&](const std::string& line, std::initializer_list<const char*> says) {
    const auto rows = parse_choice_rows(good + "\n" + line, "my.jsonl");
    ASSERT_FALSE(rows) << line;
    EXPECT_NE(rows.error().message.find("'my.jsonl' line 3"), std::string::npos)
        << rows.error().message;
    for (const char* part : says) {
      EXPECT_NE(rows.error().message.find(part), std::string::npos) << rows.error().message;
    }
  };
  refused("{\"query\": \"Q\"", {"JSON"});
  refused("{\"query\": \"\xff\", \"choices\": [\"a\", \"b\"], \"gold\": 0}", {"JSON"});
  refused("[1]", {"object", "array"});
  refused("{\"choices\": [\"a\", \"b\"], \"gold\": 0}", {"'query' is missing"});
  refused("{\"query\": 3, \"choices\": [\"a\", \"b\"], \"gold\": 0}", {"'query'", "number"});
  refused("{\"query\": \"Q\", \"choices\": [\"a\"], \"gold\": 0}", {"'choices'", "2"});
  refused("{\"query\": \"Q\", \"choices\": [\"a\", 2], \"gold\": 0}", {"'choices'", "number"});
  refused("{\"query\": \"Q\", \"choices\": [\"a\", \"\"], \"gold\": 0}", {"'choices'", "empty"});
  refused("{\"query\": \"Q\", \"choices\": [\"a\", \"b\"], \"gold\": 2}",
          {"'gold' is 2", "0 to 1"});
  refused("{\"query\": \"Q\", \"choices\": [\"a\", \"b\"], \"gold\": -1}", {"'gold' is -1"});
  refused("{\"query\": \"Q\", \"choices\": [\"a\", \"b\"], \"gold\": \"a\"}", {"'gold'"});
  refused("{\"query\": \"Q\", \"choices\": [\"a\", \"b\"]}", {"'gold' is missing"});
  EXPECT_NE(parse_choice_rows("\n \n", "e").error().message.find("no rows"), std::string::npos);
}

TEST(TargetRows, MayHaveAnEmptyPromptButNoEmptyTarget) {
  const auto rows = parse_target_rows("{\"prompt\": \"\", \"target\": \"x\"}", "f").value();
  EXPECT_EQ(rows[0].target, "x");
  EXPECT_FALSE(parse_target_rows("{\"prompt\": \"a\", \"target\": \"\"}", "f"));
  EXPECT_FALSE(parse_target_rows("{\"prompt\": \"a\"}", "f"));
}

TEST(SquadRows, KnowOtherPassagesOfTheArticle) {
  const auto rows =
      parse_squad_rows(
          "{\"title\":\"T\",\"context\":\"c1\",\"question\":\"q1\",\"answers\":[\"a\"]}\n"
          "{\"title\":\"T\",\"context\":\"c2\",\"question\":\"q2\",\"answers\":[\"a\"]}\n"
          "{\"title\":\"T\",\"context\":\"c2\",\"question\":\"q3\",\"answers\":[\"a\"]}\n"
          "{\"title\":\"U\",\"context\":\"c3\",\"question\":\"q4\",\"answers\":[\"a\"]}\n",
          "f")
          .value();
  EXPECT_EQ(rows[0].distractors, std::vector<std::string>{"c2"});
  EXPECT_EQ(rows[1].distractors, std::vector<std::string>{"c1"});
  EXPECT_TRUE(rows[3].distractors.empty());
}

TEST(HotpotQa, IsReadAsItComes) {
  const auto rows =
      parse_hotpotqa(
          "[{\"question\": \"q\", \"answer\": \"yes\", \"context\": [[\"T\", [\"One.\","
          " \" Two.\"]], [\"U\", [\"Three.\"]]]}]",
          "h")
          .value();
  EXPECT_EQ(rows[0].documents, (std::vector<std::string>{"T\nOne. Two.", "U\nThree."}));
  EXPECT_NE(parse_hotpotqa("[{\"question\": \"q\", \"answer\": \"a\"}]", "h")
                .error()
                .message.find("question 1"),
            std::string::npos);
  EXPECT_FALSE(parse_hotpotqa("{}", "h"));
}

TEST(DataThatComesWithKvspan, IsAllInOrder) {
  for (const TextTaskInfo& task : all_text_tasks()) {
    const std::string text = task_file(std::string(task.name) + ".jsonl");
    if (task.kind == TextTaskInfo::Kind::kLastWord) {
      const auto words = parse_target_rows(text, task.name).value();
      for (const TargetRow& row : words) {
        EXPECT_EQ(row.target.front(), ' ');
        EXPECT_NE(row.prompt.back(), ' ');
      }
      continue;
    }
    const auto rows = parse_choice_rows(text, task.name).value();
    EXPECT_GE(rows.size(), 100u) << task.name;
    std::size_t first = 0;
    for (const ChoiceRow& row : rows) first += row.gold == 0;
    EXPECT_GT(first, rows.size() / 8) << task.name;
    EXPECT_LT(first, rows.size() * 2 / 3) << task.name;
  }
  EXPECT_EQ(parse_squad_rows(task_file("squad.jsonl"), "squad").value().size(), 400u);
}

}  // namespace task_rows_test
}  // namespace kvspan::testing
