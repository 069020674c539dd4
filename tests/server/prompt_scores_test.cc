// SPDX-License-Identifier: Apache-2.0
#include "server/prompt_scores.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvspan::server {
namespace {

TEST(PromptScores, AreLogarithmsOfTheSoftmax) {
  // Large numbers: e^1000 is beyond a double.
  const std::vector<float> logits{1000.0f, 1001.0f, 999.0f, 1001.0f};
  const double sum = std::exp(-1.0) + 1.0 + std::exp(-2.0) + 1.0;
  const TokenScore score = score_token(logits, 2, 3);
  EXPECT_NEAR(score.logprob, -2.0 - std::log(sum), 1e-12);
  ASSERT_EQ(score.top.size(), 3u);
  EXPECT_EQ(score.top[0].first, 1);  // the first of equals
  EXPECT_EQ(score.top[1].first, 3);
  EXPECT_EQ(score.top[2].first, 0);
  EXPECT_NEAR(score.top[0].second, -std::log(sum), 1e-12);
  EXPECT_EQ(score_token(logits, 0, 100).top.size(), 4u);
  for (const llama_token unknown : {-1, 4}) EXPECT_TRUE(std::isinf(score_token(logits, unknown, 1).logprob));
}

TEST(PromptScores, GoToTheSequenceThatBeginsAlike) {
  WantedScores wanted;
  const auto first = wanted.want({1, 2, 3, 4}, 1), second = wanted.want({1, 2, 5}, 1);
  EXPECT_EQ(wanted.begin(std::vector<llama_token>{1, 2, 5}), second);
  EXPECT_EQ(wanted.begin(std::vector<llama_token>{1, 2, 5}), nullptr) << "is taken";
  EXPECT_EQ(wanted.begin(std::vector<llama_token>{1, 2, 3, 4, 5}), nullptr) << "is longer";
  EXPECT_EQ(wanted.begin(std::vector<llama_token>{1, 2}), first);
  {
    const auto left = wanted.want({7, 8}, 1);
  }
  EXPECT_EQ(wanted.begin(std::vector<llama_token>{7, 8}), nullptr) << "nobody waits for it";
}

}  // namespace
}  // namespace kvspan::server
