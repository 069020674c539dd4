// SPDX-License-Identifier: Apache-2.0
#include "llama/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvspan::testing {
namespace generate_test {

const std::string kModel = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");

class GenerateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto engine = Engine::load(kModel, {1, 64});
    ASSERT_TRUE(engine) << engine.error().message;
    engine_ = std::move(*engine);
    tokenizer_ = Tokenizer::open(kModel).value();
  }
  // Logits of the story's beginning: some tokens are likely, many are possible.
  void read_beginning() {
    cache_ = make_cache(engine_->cache_shape(), "full").value();
    const auto tokens = tokenizer_->encode("One day, a", {}).value();
    ASSERT_TRUE(engine_->prefill(*cache_, tokens));
  }
  Generation run(const GenerateOptions& options,
                 const SamplerOptions& sampling = {.temperature = 0}) {
    cache_ = make_cache(engine_->cache_shape(), "full").value();
    const std::vector<Token> start{1};
    EXPECT_TRUE(engine_->prefill(*cache_, start));
    auto sampler = Sampler::make(sampling, *engine_).value();
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
TEST_F(GenerateTest, DrawsFromWhatTheOptionsLeave) {
  read_beginning();
  const auto logits = engine_->logits(0);
  const auto shares = [&](const SamplerOptions& options) {
    auto sampler = Sampler::make(options, *engine_).value();
    std::vector<double> counts(logits.size(), 0.0);
    for (int i = 0; i < 20000; ++i)
      counts[static_cast<std::size_t>(sampler->sample(*engine_, 0).value())] += 5e-5;
    return counts;
  };
  // The probabilities of the tokens for which `left` holds, at a temperature.
  const auto expect_shares = [&](const SamplerOptions& options, const auto& left) {
    const auto got = shares(options);
    std::vector<double> p(logits.size(), 0.0);
    double sum = 0.0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (left(logits[i])) sum += p[i] = std::exp(double{logits[i]} / options.temperature);
    }
    for (std::size_t i = 0; i < p.size(); ++i) {
      EXPECT_NEAR(got[i], p[i] / sum, 5 * std::sqrt(0.25 / 20000)) << i;
      EXPECT_TRUE(p[i] > 0.0 || got[i] == 0.0) << i;
    }
  };
  std::vector<float> sorted(logits.begin(), logits.end());
  std::sort(sorted.rbegin(), sorted.rend());
  const SamplerOptions plain{
      .temperature = 1.0f, .top_k = 0, .top_p = 1.0f, .min_p = 0.0f, .seed = 1};
  expect_shares(plain, [](float) { return true; });
  SamplerOptions top_k = plain;
  top_k.top_k = 3;
  expect_shares(top_k, [&](float logit) { return logit >= sorted[2]; });
  SamplerOptions min_p = plain;
  min_p.min_p = 0.1f;
  expect_shares(min_p, [&](float logit) { return logit >= sorted[0] + std::log(0.1f); });
  SamplerOptions hot = plain;
  hot.temperature = 2.0f;
  expect_shares(hot, [](float) { return true; });
}

TEST_F(GenerateTest, APenaltyTakesTheLeadFromTokensSeen) {
  read_beginning();
  const Token likely =
      Sampler::make({.temperature = 0}, *engine_).value()->sample(*engine_, 0).value();
  for (const SamplerOptions& options :
       {SamplerOptions{.temperature = 0, .repeat_penalty = 50.0f},
        SamplerOptions{.temperature = 0, .presence_penalty = 50.0f},
        SamplerOptions{.temperature = 0, .frequency_penalty = 50.0f}}) {
    auto sampler = Sampler::make(options, *engine_).value();
    EXPECT_EQ(sampler->sample(*engine_, 0).value(), likely);
    EXPECT_NE(sampler->sample(*engine_, 0).value(), likely);
    sampler->start({});  // a new answer has seen nothing but its prompt
    EXPECT_EQ(sampler->sample(*engine_, 0).value(), likely);
    sampler->start({&likely, 1});
    EXPECT_NE(sampler->sample(*engine_, 0).value(), likely);
  }
}

TEST_F(GenerateTest, ABiasDecidesAndEndsCanBeIgnored) {
  read_beginning();
  const Token end = tokenizer_->encode("</s>", {false, true}).value().front();
  ASSERT_TRUE(tokenizer_->is_end(end));
  SamplerOptions options{.temperature = 0, .logit_bias = {{end, 1000.0f}}};
  EXPECT_EQ(Sampler::make(options, *engine_).value()->sample(*engine_, 0).value(), end);
  options.ignore_end = true;
  EXPECT_NE(Sampler::make(options, *engine_).value()->sample(*engine_, 0).value(), end);
}

TEST_F(GenerateTest, EachAnswerOfASamplerIsAnotherDrawByTheSameGrammar) {
  auto sampler =
      Sampler::make({.temperature = 5.0f, .top_k = 0, .grammar = "root ::= [a-z]{20}"}, *engine_)
          .value();
  std::vector<std::string> answers;
  for (int turn = 0; turn < 2; ++turn) {
    read_beginning();
    sampler->start({});
    answers.push_back(
        generate(*engine_, *tokenizer_, *cache_, *sampler, {.stop = {}}, nullptr).value().text);
    EXPECT_EQ(answers.back().size(), 20u) << answers.back();
  }
  EXPECT_NE(answers[0], answers[1]);
}

TEST_F(GenerateTest, AGrammarWithoutATokenLeftIsAnError) {
  read_beginning();
  auto sampler =
      Sampler::make({.temperature = 0, .ignore_end = true, .grammar = "root ::= \"a\""}, *engine_)
          .value();
  const auto answer = generate(*engine_, *tokenizer_, *cache_, *sampler, {.stop = {}}, nullptr);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().message, "grammar and biases leave no token to go on with");
}

TEST_F(GenerateTest, ImpossibleOptionsAreRefusedByName) {
  const auto refused = [&](const SamplerOptions& options, const std::string& name) {
    auto sampler = Sampler::make(options, *engine_);
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
  refused({.dry_base = 0.5f}, "dry-base");
  refused({.mirostat = 3}, "mirostat");
  refused({.logit_bias = {{512, 1.0f}}}, "logit-bias");
  refused({.grammar = "root ::= ("}, "grammar 'root ::= (' is refused: ");
  refused({.grammar = "start ::= \"a\""}, "grammar");
  refused({.grammar = "root ::= root \"a\""}, "grammar");
  refused({.json_schema = "{"}, "json-schema '{' is refused: ");
  refused({.json_schema = "{\"type\": \"foo\"}"}, "json-schema");
  refused({.grammar = "root ::= \"a\"", .json_schema = "{}"}, "grammar and json-schema");
}

}  // namespace generate_test
}  // namespace kvspan::testing
