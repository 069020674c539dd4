// SPDX-License-Identifier: Apache-2.0
// Tracked errors of recipes on a real model and on activations of one.
#include "eval/study/tracking_cache.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/thread_pool.h"
#include "eval/calibrate/calibrate.h"
#include "eval/perplexity/windows.h"
#include "io/atomic_file.h"
#include "llama/engine.h"
#include "llama/tokenizer.h"
#include "tests/method/synthetic.h"

namespace kvspan::testing {
namespace {

SyntheticText real_text() {
  return SyntheticText(read_activations("stories260k_layer4.f16"));
}

// Every step of a recipe on the activations, prompt of 100 tokens and then one by one.
std::vector<TrackedStep> track(const SyntheticText& text, const std::string& recipe) {
  const Calibration calibration = text.calibration();
  const auto caches = CacheFactory::create(text.shape(), recipe, &calibration);
  EXPECT_TRUE(caches) << caches.error().message;
  std::vector<TrackedStep> steps;
  auto cache = TrackingCache::create(caches->make(), [&](const TrackedStep& step) {
                 steps.push_back(step);
               }).value();
  run(*cache, text, 0, 100, 100);
  run(*cache, text, 100, text.size() - 100, 1);
  return steps;
}

TEST(TrackingCache, AFullCacheHasNoErrorsBeyondRounding) {
  for (const char* recipe : {"full", "full:store=f32"}) {
    const auto steps = track(real_text(), recipe);
    ASSERT_EQ(steps.size(), 1u + 156u);
    for (const TrackedStep& s : steps) {
      EXPECT_EQ(s.logit_error, 0.0);
      EXPECT_LE(s.output_error, 1e-5 * (1.0 + s.output_norm));
      EXPECT_NEAR(s.correlation, 1.0, 1e-12);
      EXPECT_EQ(s.top10_overlap, 1.0);
      EXPECT_EQ(s.read, s.tokens);
    }
    EXPECT_EQ(steps.back().position, 255);
    EXPECT_EQ(steps.back().tokens, 256);
  }
}

TEST(TrackingCache, BoundsAreNeverBelowTheErrors) {
  for (const char* recipe : {"quant:bits=4,group=16,sink=4,recent=16,certify=on",
                             "quant:bits=2,layout=kivi,group=16,sink=4,recent=16,certify=on",
                             "static:rk=4,rv=4,sink=4,recent=16,certify=on",
                             "static:rk=4,rv=4,sink=4,recent=16,rope=anchor,store=int8,certify=on",
                             "spectral:rk=4,rv=4,block=32,sink=4,recent=16,certify=on",
                             "fd:rk=3,rv=4,tau=0.8,sink=4,recent=16,certify=on",
                             "rotate:rk=4,rv=4,every=32,sink=4,recent=16,certify=on",
                             "oja:rk=4,rv=4,sink=4,recent=16,share=layer,certify=on"}) {
    double worst = 0.0;
    for (const TrackedStep& s : track(real_text(), recipe)) {
      ASSERT_TRUE(s.bound) << recipe;
      EXPECT_LE(s.logit_error, s.bound->logits) << recipe << " at " << s.position;
      EXPECT_LE(s.output_error, s.bound->output) << recipe << " at " << s.position;
      worst = std::max(worst, s.output_error / s.output_norm);
    }
    EXPECT_GT(worst, 1e-3) << recipe << " coded nothing";
  }
}

TEST(TrackingCache, ErrorsAreThoseOfTheAttentionItself) {
  const SyntheticText text = real_text();
  const Calibration calibration = text.calibration();
  const std::string recipe = "static:rk=3,rv=4,sink=4,recent=16,store=f32";
  const auto steps = track(text, recipe);
  const auto coded = CacheFactory::create(text.shape(), recipe, &calibration)->make();
  const auto full = CacheFactory::create(text.shape(), "full:store=f32")->make();
  run(*coded, text, 0, 255, 255), run(*full, text, 0, 255, 255);
  const auto a = run(*coded, text, 255, 1, 1), b = run(*full, text, 255, 1, 1);
  double most = 0.0;
  for (std::size_t h = 0; h < 8; ++h) {
    double off = 0.0;
    for (std::size_t j = 0; j < 8; ++j) {
      off += std::pow(double{a[h * 8 + j]} - double{b[h * 8 + j]}, 2.0);
    }
    most = std::max(most, std::sqrt(off));
  }
  // The last query of both: calls are split differently, which static's units do not depend on.
  EXPECT_NEAR(steps.back().output_error, most, 1e-5 * (1.0 + steps.back().output_norm));
  EXPECT_LT(steps.back().correlation, 1.0);
  EXPECT_LE(steps.back().top10_overlap, 1.0);
}

TEST(TrackingCache, KnowsDroppedTokensAndSketches) {
  const auto window = track(real_text(), "streaming:sink=4,size=60");
  EXPECT_EQ(window.back().tokens, 256);
  EXPECT_EQ(window.back().read, 65);  // the query's own token is there until the step settles
  EXPECT_FALSE(window.back().bound);
  EXPECT_EQ(window.back().logit_error, 0.0);
  EXPECT_GT(window.back().output_error, 0.0);
  EXPECT_LT(window.back().correlation, 1.0 - 1e-6);

  const auto quest = track(real_text(), "quest:keep=64,page=8,skip=0");
  EXPECT_LT(quest.back().read, 100);

  const auto fd = track(real_text(), "fd:rk=3,rv=4,tau=0.8,sink=4,recent=16");
  EXPECT_FALSE(fd.back().bound);  // no residuals are kept
  ASSERT_TRUE(fd.back().key_delta && fd.back().value_delta);
  EXPECT_GT(*fd.back().key_delta, 0.0);
  EXPECT_GE(*fd.back().key_delta, *fd[fd.size() / 2].key_delta);
  EXPECT_FALSE(window.back().key_delta);
}

TEST(TrackingCache, RebuildsTokensOfBands) {
  for (const char* share : {"kv", "layer"}) {
    const auto fine =
        track(real_text(), fmt::format("bands:bits=5,sink=16,recent=16,share={}", share));
    const auto rough =
        track(real_text(), fmt::format("bands:bits=1,sink=16,recent=16,share={}", share));
    EXPECT_EQ(rough.back().read, 256) << share;
    EXPECT_FALSE(rough.back().bound);
    EXPECT_GT(rough.back().logit_error, 2.0 * fine.back().logit_error) << share;
    EXPECT_GT(fine.back().logit_error, 0.0) << share;
    EXPECT_GT(fine.back().correlation, 0.99) << share;
    EXPECT_GT(fine.back().correlation, rough.back().correlation) << share;
    for (const TrackedStep& step :
         track(real_text(),
               fmt::format("bands:bits=3,sink=16,recent=16,share={},certify=on", share))) {
      ASSERT_TRUE(step.bound) << share;
      EXPECT_LE(step.logit_error, step.bound->logits) << share;
      EXPECT_LE(step.output_error, step.bound->output) << share;
    }
  }
}

TEST(TrackingCache, FollowsTruncationAndAnyTeam) {
  const auto engine =
      Engine::load(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf", {2, 32}).value();
  std::vector<Token> tokens;
  for (Token t = 0; t < 120; ++t) tokens.push_back(1 + t * 7 % 400);
  std::vector<TrackedStep> steps;
  auto cache = TrackingCache::create(make_cache(engine->cache_shape(),
                                                "quant:bits=4,group=16,sink=4,recent=40,certify=on")
                                         .value(),
                                     [&](const TrackedStep& step) { steps.push_back(step); })
                   .value();
  const std::span<const Token> all(tokens);
  ASSERT_TRUE(engine->prefill(*cache, all.first(110)));
  EXPECT_EQ(steps.size(), 4u * 5u);  // blocks of 32, five layers
  ASSERT_TRUE(engine->prefill(*cache, all.subspan(110)));
  ASSERT_TRUE(cache->truncate(112));
  ASSERT_TRUE(engine->prefill(*cache, all.subspan(112)));
  ASSERT_EQ(steps.size(), 6u * 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    const TrackedStep &before = steps[20 + i], &after = steps[25 + i];
    EXPECT_EQ(after.layer, static_cast<int>(i));
    EXPECT_EQ(after.position, 119);
    ASSERT_TRUE(after.bound);
    EXPECT_GT(after.output_error, 0.0);
    EXPECT_LE(after.output_error, after.bound->output);
    // The same tokens again: what they see is the same but for rounding.
    EXPECT_NEAR(before.output_norm, after.output_norm, 1e-3 * before.output_norm);
  }
  EXPECT_FALSE(cache->fork());
  cache->clear();
  EXPECT_EQ(cache->tokens(), 0);
}

}  // namespace
}  // namespace kvspan::testing
