// SPDX-License-Identifier: Apache-2.0
#include "llama/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvspan::testing {
namespace {

const std::string kModel = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");

class GenerateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto engine = Engine::load(kModel, {1, 64});
    ASSERT_TRUE(engine) << engine.error().message;
    engine_ = std::move(*engine);
    tokenizer_ = Tokenizer::open(kModel).value();
  }
  Generation run(const GenerateOptions& options,
                 const SamplerOptions& sampling = {.temperature = 0}) {
    cache_ = make_cache(engine_->cache_shape(), "full").value();
    const std::vector<Token> start{1};
    EXPECT_TRUE(engine_->prefill(*cache_, start));
    auto sampler = Sampler::make(sampling, engine_->info().vocabulary).value();
    streamed_.clear();
    return generate(*engine_, *tokenizer_, *cache_, *sampler, options,
                    [&](std::string_view text) { streamed_ += text; })
        .value();
  }
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<KvCache> cache_;
  std::string streamed_;
};

TEST_F(GenerateTest, StopsBeforeAStopStringThatSpansTokensAndNeverStreamsIt) {
  const Generation g = run({.max_tokens = 60, .stop = {"named Lily. She"}});
  EXPECT_EQ(g.reason, StopReason::kStopString);
  EXPECT_EQ(g.text, " Once upon a time, there was a little girl ");
  EXPECT_EQ(streamed_, g.text);
}

TEST_F(GenerateTest, TheEarliestStopStringWins) {
  EXPECT_EQ(run({.max_tokens = 60, .stop = {"girl", "time", "zebra"}}).text, " Once upon a ");
}

TEST_F(GenerateTest, LengthAndContextEndTheAnswer) {
  const Generation by_length = run({.max_tokens = 5, .stop = {}});
  EXPECT_EQ(by_length.reason, StopReason::kLength);
  EXPECT_EQ(by_length.tokens.size(), 5u);
  EXPECT_EQ(cache_->tokens(), 5);  // the start and all but the last of the answer
  const Generation by_context = run({.max_tokens = 100, .context = 12, .stop = {}});
  EXPECT_EQ(by_context.reason, StopReason::kContext);
  EXPECT_EQ(cache_->tokens(), 12);
  EXPECT_TRUE(run({.max_tokens = 0, .stop = {}}).tokens.empty());
}

TEST_F(GenerateTest, TheSameSeedGivesTheSameTextAndAnotherSeedAnother) {
  const SamplerOptions warm{.temperature = 1.0f, .seed = 5};
  const std::string first = run({.max_tokens = 40, .stop = {}}, warm).text;
  EXPECT_EQ(run({.max_tokens = 40, .stop = {}}, warm).text, first);
  SamplerOptions other = warm;
  other.seed = 6;
  EXPECT_NE(run({.max_tokens = 40, .stop = {}}, other).text, first);
}

// Draws from known logits; shares must be within 5 standard deviations of what the options leave.
TEST(Sampler, DrawsFromWhatTheOptionsLeave) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  const auto shares = [&](const SamplerOptions& options) {
    auto sampler = Sampler::make(options, 4).value();
    std::vector<double> counts(4, 0.0);
    for (int i = 0; i < 20000; ++i)
      counts[static_cast<std::size_t>(sampler->sample(logits))] += 5e-5;
    return counts;
  };
  const double tolerance = 5 * std::sqrt(0.25 / 20000);
  SamplerOptions plain{.temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f, .seed = 1};
  auto got = shares(plain);
  for (const auto& [i, p] : {std::pair{0, 0.5}, {1, 0.3}, {2, 0.15}, {3, 0.05}}) {
    EXPECT_NEAR(got[static_cast<std::size_t>(i)], p, tolerance);
  }
  SamplerOptions top_k = plain;
  top_k.top_k = 2;
  got = shares(top_k);
  EXPECT_NEAR(got[0], 0.5 / 0.8, tolerance);
  EXPECT_EQ(got[2] + got[3], 0.0);
  SamplerOptions min_p = plain;
  min_p.min_p = 0.25f;  // at least a quarter of the most likely: 0.125
  got = shares(min_p);
  EXPECT_GT(got[2], 0.1);
  EXPECT_EQ(got[3], 0.0);
  SamplerOptions hot = plain;
  hot.temperature = 2.0f;  // probabilities go with their square roots
  const double norm = std::sqrt(0.5) + std::sqrt(0.3) + std::sqrt(0.15) + std::sqrt(0.05);
  EXPECT_NEAR(shares(hot)[0], std::sqrt(0.5) / norm, tolerance);
}

TEST(Sampler, RepetitionPenaltyDividesTheLogitsOfSeenTokens) {
  const std::vector<float> logits{2.0f, 1.5f, 0.0f};
  SamplerOptions options{.temperature = 0.0f, .repeat_penalty = 1.5f};
  auto sampler = Sampler::make(options, 3).value();
  EXPECT_EQ(sampler->sample(logits), 0);  // then 2.0 / 1.5 < 1.5
  EXPECT_EQ(sampler->sample(logits), 1);
}

TEST(Sampler, RefusesImpossibleOptionsByName) {
  const auto refused = [](const SamplerOptions& options, const std::string& name) {
    auto sampler = Sampler::make(options, 4);
    ASSERT_FALSE(sampler) << name;
    EXPECT_EQ(sampler.error().message.rfind(name, 0), 0u) << sampler.error().message;
    EXPECT_NE(sampler.error().message.find("allowed:"), std::string::npos);
  };
  refused({.temperature = -1.0f}, "temperature");
  refused({.temperature = std::numeric_limits<float>::quiet_NaN()}, "temperature");
  refused({.top_k = -1}, "top-k");
  refused({.top_p = 0.0f}, "top-p");
  refused({.min_p = 1.5f}, "min-p");
  refused({.repeat_penalty = 0.0f}, "repeat-penalty");
}

}  // namespace
}  // namespace kvspan::testing
