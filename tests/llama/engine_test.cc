// SPDX-License-Identifier: Apache-2.0
// The engine on a real (trained, if tiny) model: known text, known loss, batches, failure.
#include "llama/engine.h"
#include "api/wrapped_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "llama/generate.h"
#include "llama/sampler.h"
#include "llama/tokenizer.h"
#include "tests/llama/exact_cache.h"

namespace kvspan::testing {
namespace {

const std::string kModel = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");

class StoriesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto engine = Engine::load(kModel, {1, 512});
    ASSERT_TRUE(engine) << engine.error().message;
    engine_ = std::move(*engine);
    auto tokenizer = Tokenizer::open(kModel);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    tokenizer_ = std::move(*tokenizer);
  }
  std::unique_ptr<KvCache> new_cache(const std::string& recipe = "full") {
    auto cache = make_cache(engine_->cache_shape(), recipe);
    EXPECT_TRUE(cache) << cache.error().message;
    return std::move(*cache);
  }
  std::vector<Token> story_tokens(std::size_t count) {
    std::ifstream in(std::string(KVSPAN_SOURCE_DIR "/data/text/tinystories_head.txt"));
    std::stringstream text;
    text << in.rdbuf();
    auto tokens = tokenizer_->encode(text.str(), {}).value();
    tokens.resize(count);
    return tokens;
  }
  // Logits after the last of `tokens`, read in one go into a fresh cache.
  std::vector<float> last_logits(std::span<const Token> tokens) {
    auto cache = new_cache();
    EXPECT_TRUE(engine_->prefill(*cache, tokens));
    const auto logits = engine_->logits(0);
    return {logits.begin(), logits.end()};
  }
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

// Computed with a double-precision implementation of the model (data/models/README.md).
TEST_F(StoriesTest, GreedyTextIsTheKnownOne) {
  auto cache = new_cache();
  const std::vector<Token> start{1};
  ASSERT_TRUE(engine_->prefill(*cache, start));
  auto sampler = Sampler::make({.temperature = 0.0f}, *engine_);
  const auto answer =
      generate(*engine_, *tokenizer_, *cache, **sampler, {.max_tokens = 60, .stop = {}}, nullptr);
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(
      answer->text,
      " Once upon a time, there was a little girl named Lily. She loved to play outside in the "
      "park. One day, she saw a big, red ball. She wanted to play with it, but it was too high");
  EXPECT_EQ(answer->reason, StopReason::kLength);
}

TEST_F(StoriesTest, LossIsTheKnownOne) {
  const auto tokens = story_tokens(512);
  EXPECT_EQ((std::vector<Token>(tokens.begin(), tokens.begin() + 12)),
            (std::vector<Token>{1, 385, 328, 432, 261, 376, 298, 315, 421, 395, 317, 272}));
  for (const char* recipe : {"full:store=f32", "full"}) {
    auto cache = new_cache(recipe);
    const BatchPart part{cache.get(), tokens, BatchPart::Logits::kAll};
    ASSERT_TRUE(engine_->decode({&part, 1}));
    double loss = 0.0;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto logits = engine_->logits(static_cast<std::int32_t>(i));
      double top = *std::max_element(logits.begin(), logits.end()), sum = 0.0;
      for (const float x : logits) sum += std::exp(x - top);
      loss += top + std::log(sum) - logits[static_cast<std::size_t>(tokens[i + 1])];
    }
    EXPECT_NEAR(loss / 511, 1.46934, 1e-3) << recipe;
  }
}

TEST_F(StoriesTest, SequencesInOneBatchAreAsTheyWouldBeAlone) {
  const auto story = story_tokens(100);
  const std::span all(story);
  const std::array<std::span<const Token>, 3> prompts{all.first(40), all.subspan(40, 7),
                                                      all.subspan(50, 1)};
  std::array<std::unique_ptr<KvCache>, 3> caches{new_cache(), new_cache(), new_cache()};
  std::vector<BatchPart> batch;
  for (std::size_t i = 0; i < 3; ++i) batch.push_back({caches[i].get(), prompts[i], {}});
  ASSERT_TRUE(engine_->decode(batch));
  ASSERT_EQ(engine_->logit_rows(), 3);
  std::array<std::vector<float>, 3> together;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto logits = engine_->logits(static_cast<std::int32_t>(i));
    together[i].assign(logits.begin(), logits.end());
    EXPECT_EQ(caches[i]->tokens(), static_cast<std::int32_t>(prompts[i].size()));
  }
  for (std::size_t i = 0; i < 3; ++i) {
    const auto alone = last_logits(prompts[i]);
    // Matrix products of other batch sizes may sum in another order.
    for (std::size_t k = 0; k < alone.size(); ++k) EXPECT_NEAR(together[i][k], alone[k], 2e-3);
  }
}

// Two threads share five sequences: two rounds of whole ones, and one together. One thread has them
// all in turn.
TEST_F(StoriesTest, SequencesTakenWholeAreAsWithOneThread) {
  const auto story = story_tokens(300);
  const std::span all(story);
  const auto decoded = [&](int threads) {
    auto engine = Engine::load(kModel, {threads, 512});
    EXPECT_TRUE(engine);
    const std::array<std::size_t, 5> lengths{200, 40, 190, 42, 7};
    std::vector<std::unique_ptr<KvCache>> caches;
    std::vector<BatchPart> batch;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      caches.push_back(new_cache());
      EXPECT_TRUE((*engine)->prefill(*caches[i], all.subspan(i, lengths[i])));
      batch.push_back({caches[i].get(), all.subspan(i + lengths[i], 1), {}});
    }
    std::vector<float> logits;
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE((*engine)->decode(batch));
      for (std::int32_t row = 0; row < 5; ++row) {
        const auto some = (*engine)->logits(row);
        logits.insert(logits.end(), some.begin(), some.end());
      }
    }
    return logits;
  };
  EXPECT_EQ(decoded(2), decoded(1));
}

TEST_F(StoriesTest, ForkAndTruncateContinueAsIfNeverLeft) {
  const auto story = story_tokens(90);
  const std::span all(story);
  auto cache = new_cache();
  ASSERT_TRUE(engine_->prefill(*cache, all.first(60)));
  auto fork = cache->fork();
  ASSERT_TRUE(fork);
  ASSERT_TRUE(engine_->prefill(*cache, all.subspan(60, 20)));  // the original goes elsewhere
  ASSERT_TRUE(cache->truncate(60));                            // and returns
  ASSERT_TRUE(engine_->prefill(*cache, all.subspan(80, 10)));
  const auto returned = engine_->logits(0);
  const std::vector<float> expected(returned.begin(), returned.end());
  ASSERT_TRUE(engine_->prefill(**fork, all.subspan(80, 10)));
  const auto forked = engine_->logits(0);
  EXPECT_EQ(std::vector<float>(forked.begin(), forked.end()), expected);
}

TEST_F(StoriesTest, BlocksOfAnySizeReadTheSame) {
  const auto story = story_tokens(200);
  const auto whole = last_logits(story);
  auto small = Engine::load(kModel, {1, 33});
  ASSERT_TRUE(small);
  auto cache = make_cache((*small)->cache_shape(), "full");
  std::vector<std::size_t> seen;
  ASSERT_TRUE((*small)->prefill(**cache, story, [&](std::size_t done) { seen.push_back(done); }));
  EXPECT_EQ(seen, (std::vector<std::size_t>{33, 66, 99, 132, 165, 198, 200}));
  for (std::size_t k = 0; k < whole.size(); ++k) {
    EXPECT_NEAR((*small)->logits(0)[k], whole[k], 2e-3);
  }
}

TEST_F(StoriesTest, FailuresNameTheFaultAndLeaveTheCacheAlone) {
  auto cache = new_cache();
  const auto story = story_tokens(512);
  ASSERT_TRUE(engine_->prefill(*cache, std::span(story).first(10)));
  const auto expect_failure = [&](std::span<const Token> tokens, const std::string& part) {
    const Status status = engine_->prefill(*cache, tokens);
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
    EXPECT_EQ(cache->tokens(), 10);
  };
  expect_failure({}, "no tokens");
  const std::vector<Token> foreign{5, 512};
  expect_failure(foreign, "token 512 at index 1 is outside 0..511");
  const std::vector<Token> negative{-1};
  expect_failure(negative, "token -1");
  expect_failure(story, "522 tokens exceed the model's context of 512");
}

TEST_F(StoriesTest, CancellingTakesTheStepBack) {
  auto cache = new_cache();
  const auto story = story_tokens(100);
  ASSERT_TRUE(engine_->prefill(*cache, std::span(story).first(50)));
  std::atomic<bool> cancel{true};
  engine_->set_cancel_flag(&cancel);
  const Status status = engine_->prefill(*cache, std::span(story).subspan(50));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(cache->tokens(), 50);
  cancel = false;
  ASSERT_TRUE(engine_->prefill(*cache, std::span(story).subspan(50)));
  const auto resumed = engine_->logits(0);
  auto never = new_cache();
  const std::vector<float> got(resumed.begin(), resumed.end());
  ASSERT_TRUE(engine_->prefill(*never, std::span(story).first(50)));
  ASSERT_TRUE(engine_->prefill(*never, std::span(story).subspan(50)));
  EXPECT_EQ(got, std::vector<float>(engine_->logits(0).begin(), engine_->logits(0).end()));
}

// A cache whose steps fail from one layer on: the engine must report it and take the rows back.
class FailingCache final : public WrappedCache {
 public:
  explicit FailingCache(CacheShape shape)
      : WrappedCache(std::make_unique<ExactCache>(std::move(shape))) {}
  Status append(int layer, const KvRows& rows, Team& team) override {
    if (layer == 2) return Error{ErrorCode::kOutOfBudget, "the budget is spent"};
    return WrappedCache::append(layer, rows, team);
  }
  Status truncate(std::int32_t n) override {
    truncated_to = n;
    if (!goes_back) return Error{ErrorCode::kInvalidArgument, "cannot go back"};
    return WrappedCache::truncate(n);
  }
  void clear() override {
    cleared = true;
    WrappedCache::clear();
  }
  std::int32_t truncated_to = -1;
  bool goes_back = true, cleared = false;
};

TEST_F(StoriesTest, AFailingCacheEndsTheStepWithItsError) {
  FailingCache cache(engine_->cache_shape());
  const std::vector<Token> tokens{1, 385, 328};
  const Status status = engine_->prefill(cache, tokens);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfBudget);
  EXPECT_EQ(status.error().message, "the budget is spent");
  EXPECT_EQ(cache.truncated_to, 0);
}

TEST_F(StoriesTest, AFailingCacheAmongOthersEndsTheStepOfAll) {
  const std::vector<Token> token{1};
  for (const std::size_t failing : {0, 1, 2, 3}) {
    FailingCache fails(engine_->cache_shape());
    std::vector<std::unique_ptr<KvCache>> caches;
    std::vector<BatchPart> batch;
    for (std::size_t i = 0; i < 4; ++i) {
      caches.push_back(new_cache());
      batch.push_back({i == failing ? &fails : caches[i].get(), token, {}});
    }
    const Status status = engine_->decode(batch);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().message, "the budget is spent");
    for (const auto& cache : caches) EXPECT_EQ(cache->tokens(), 0);
    batch.erase(batch.begin() + static_cast<std::ptrdiff_t>(failing));
    EXPECT_TRUE(engine_->decode(batch)) << "the failure stays behind";
  }
}

// Layers that hold different tokens are of no use, and the first failure is the one to tell.
TEST_F(StoriesTest, AFailingCacheThatCannotGoBackIsEmptied) {
  FailingCache cache(engine_->cache_shape());
  cache.goes_back = false;
  const auto story = story_tokens(20);
  const Status status = engine_->prefill(cache, story);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "the budget is spent");
  EXPECT_TRUE(cache.cleared);
  EXPECT_EQ(cache.tokens(), 0);
}

}  // namespace
}  // namespace kvspan::testing
