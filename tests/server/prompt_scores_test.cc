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

using Tokens = std::vector<llama_token>;

// Logits of four tokens after `token`: each token has its own.
std::vector<float> logits_after(llama_token token) {
  const float x = static_cast<float>(token);
  return {x, 1.0f, 2.0f * x, -x};
}

SequenceScores read_all(const Tokens& tokens, std::size_t top) {
  SequenceScores scores(top);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_TRUE(scores.read(static_cast<llama_pos>(i), tokens[i], logits_after(tokens[i])));
  }
  return scores;
}

TEST(PromptScores, OfASequenceAreByTheTokenBefore) {
  const Tokens tokens{1, 3, 0, 2};
  const SequenceScores scores = read_all(tokens, 2);
  ASSERT_EQ(scores.scores().size(), 3u);
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    const TokenScore wanted = score_token(logits_after(tokens[i - 1]), tokens[i], 2);
    EXPECT_EQ(scores.scores()[i - 1].logprob, wanted.logprob);
    EXPECT_EQ(scores.scores()[i - 1].top, wanted.top);
  }
}

TEST(PromptScores, OfASequenceThatIsReadTwiceStayAndOfAnotherTextEnd) {
  SequenceScores scores = read_all({1, 3, 0}, 1);
  EXPECT_TRUE(scores.read(1, 3, logits_after(3)));  // a batch that is tried again
  EXPECT_EQ(scores.scores().size(), 2u);
  EXPECT_TRUE(scores.read(3, 2, {}));
  EXPECT_FALSE(scores.read(2, 1, logits_after(1))) << "was another token";
  EXPECT_FALSE(scores.read(5, 1, logits_after(1))) << "a gap";
  EXPECT_FALSE(scores.read(4, 1, logits_after(1))) << "nothing scores it";
}

TEST(PromptScores, GoOnlyToPromptsOfTheSameTokens) {
  WantedScores wanted;
  const auto shorter = wanted.want({1, 2}, 1), longer = wanted.want({1, 2, 3, 0}, 1),
             other = wanted.want({1, 2, 0, 3}, 1), same = wanted.want({1, 2, 3, 0}, 1);
  EXPECT_EQ(wanted.top_of(Tokens{1, 2}), 1u) << "as all begin";
  wanted.give(read_all({1, 2, 3, 0}, 1));
  EXPECT_FALSE(wanted.take(*shorter));
  EXPECT_FALSE(wanted.take(*other));
  for (const auto& prompt : {longer, same}) {
    const auto scores = wanted.take(*prompt);
    ASSERT_TRUE(scores);
    ASSERT_EQ(scores->size(), 3u);
    EXPECT_EQ((*scores)[1].logprob, score_token(logits_after(2), 3, 1).logprob);
  }
}

TEST(PromptScores, HaveAsManyLikeliestTokensAsWereWanted) {
  WantedScores wanted;
  const auto one = wanted.want({1, 2}, 1), three = wanted.want({1, 2}, 3);
  EXPECT_EQ(wanted.top_of(Tokens{1}), 3u);
  wanted.give(read_all({1, 2}, 1));  // began before `three` was wanted
  EXPECT_FALSE(wanted.take(*three));
  wanted.give(read_all({1, 2}, 3));
  EXPECT_EQ(wanted.take(*one).value().front().top.size(), 1u);
  EXPECT_EQ(wanted.take(*three).value().front().top.size(), 3u);
}

TEST(PromptScores, AreWantedAsLongAsTheRequestIsThere) {
  WantedScores wanted;
  {
    const auto left = wanted.want({7, 8}, 1);
    EXPECT_EQ(wanted.top_of(Tokens{7}), 1u);
  }
  EXPECT_EQ(wanted.top_of(Tokens{7}), 0u);
  EXPECT_EQ(wanted.top_of(Tokens{7, 8, 9}), 0u) << "is longer";
}

}  // namespace
}  // namespace kvspan::server
