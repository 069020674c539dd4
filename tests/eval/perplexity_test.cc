// SPDX-License-Identifier: Apache-2.0
// Perplexity on a real (if tiny) model: against plain loops, against llama.cpp, and with caches
// that are wrong on purpose.
#include "eval/perplexity/perplexity.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "eval/perplexity/divergence.h"
#include "eval/perplexity/windows.h"
#include "io/atomic_file.h"
#include "llama/tokenizer.h"
#include "tests/eval/faulty_cache.h"

namespace kvspan::testing {
namespace {

const std::string kModel = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");

class PerplexityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto engine = Engine::load(kModel, {2, 128});
    ASSERT_TRUE(engine) << engine.error().message;
    engine_ = std::move(*engine);
    const auto bytes =
        read_file(std::string(KVSPAN_SOURCE_DIR "/data/text/tinystories_head.txt")).value();
    const auto tokenizer = Tokenizer::open(kModel).value();
    windows_ = cut_windows(*tokenizer, {reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                           {.length = 512, .most = 3, .least = 0})
                   .value();
    ASSERT_EQ(windows_.size(), 3u);
  }
  CacheSource source() {
    return [this](const std::string& recipe) -> Result<std::unique_ptr<KvCache>> {
      return FaultyCache::make(engine_->cache_shape(), recipe);
    };
  }
  PerplexityReport measure(const std::vector<std::string>& recipes,
                           PerplexityOptions options = {}) {
    options.block = 128;
    auto report = measure_perplexity(*engine_, windows_, recipes, source(), options);
    EXPECT_TRUE(report) << report.error().message;
    return std::move(*report);
  }
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<Token>> windows_;
};

TEST_F(PerplexityTest, OfARecipeAgainstItselfIsTheSameAndDivergesByZero) {
  const auto report = measure({"full"});
  ASSERT_EQ(report.rows.size(), 2u);
  for (const PerplexityRow& row : report.rows) {
    EXPECT_EQ(row.figures.positions, 3u * 255);  // the last token predicts nothing that is known
    EXPECT_EQ(row.figures.kl, 0.0);
    EXPECT_EQ(row.figures.kl_p99, 0.0);
    EXPECT_EQ(row.figures.top1, 1.0);
    EXPECT_EQ(row.figures.dppl_pct, 0.0);
    EXPECT_EQ(row.tokens, 512);
    EXPECT_EQ(row.kv_bytes_full, full_rank_f16_bytes(engine_->cache_shape(), 512));
    EXPECT_GE(row.kv_bytes, row.kv_bytes_full);
  }
  EXPECT_EQ(report.windows, 3u);
  EXPECT_EQ(report.rows[0].figures.ppl, report.rows[1].figures.ppl);
}

TEST_F(PerplexityTest, EqualsPlainLoops) {
  const auto report = measure({"full:store=f32"}, {.buckets = 4});
  double nll = 0.0, kl = 0.0, last_bucket = 0.0;
  for (const auto& window : windows_) {
    std::vector<std::vector<float>> logits[2];
    for (int which = 0; which < 2; ++which) {
      auto cache =
          make_cache(engine_->cache_shape(), which == 0 ? "full" : "full:store=f32").value();
      for (std::size_t at = 0; at < window.size(); at += 128) {
        const BatchPart part{cache.get(), std::span(window).subspan(at, 128),
                             BatchPart::Logits::kAll};
        ASSERT_TRUE(engine_->decode({&part, 1}));
        for (std::int32_t i = 0; i < 128; ++i) {
          const auto row = engine_->logits(i);
          logits[which].emplace_back(row.begin(), row.end());
        }
      }
    }
    for (std::size_t i = 256; i < 511; ++i) {
      const auto target = static_cast<std::size_t>(window[i + 1]);
      const double loss = log_sum_exp(logits[1][i]) - logits[1][i][target];
      nll += loss;
      if (i >= 384) last_bucket += loss;
      kl += kl_divergence(logits[0][i], logits[1][i]);
    }
  }
  const PerplexityRow& row = report.rows[1];
  // f32 exponentials: log_sum_exp within 1e-6.
  EXPECT_NEAR(row.figures.ppl / std::exp(nll / 765.0), 1.0, 1e-6);
  EXPECT_NEAR(row.figures.kl, kl / 765.0, 1e-7);
  ASSERT_EQ(row.by_position.size(), 4u);
  EXPECT_EQ(row.by_position[0].positions, 3u * 128);
  EXPECT_EQ(row.by_position[3].positions, 3u * 127);
  EXPECT_NEAR(row.by_position[3].ppl / std::exp(last_bucket / 381.0), 1.0, 1e-6);
}

TEST_F(PerplexityTest, EqualsLlamaCppsOwn) {
  PerplexityOptions options;
  options.peer_kv = {"f32"};
  const auto report = measure({}, options);
  ASSERT_EQ(report.rows.size(), 2u);
  EXPECT_EQ(report.rows[1].recipe, "llama.cpp f32");
  // The promise is half a per cent; with this model's f32 weights the two differ by f16 rounding of
  // the cache only.
  EXPECT_NEAR(report.rows[1].figures.dppl_pct, 0.0, 0.05);
  EXPECT_LT(report.rows[1].figures.kl, 1e-5);
  EXPECT_GT(report.rows[1].figures.top1, 0.99);
}

TEST_F(PerplexityTest, CatchesACacheThatLosesAHead) {
  const auto report = measure({"loses-a-head"});
  const PerplexityFigures& figures = report.rows[1].figures;
  EXPECT_FALSE(report.rows[1].failed);
  EXPECT_GT(figures.dppl_pct, 1.0);
  EXPECT_GT(figures.kl, 0.01);
  EXPECT_GT(figures.kl_p99, figures.kl);
  EXPECT_LT(figures.top1, 0.99);
}

TEST_F(PerplexityTest, LetsOtherRecipesFinishWhenOneFails) {
  const auto report = measure({"fails-late", "not-finite", "full"});
  ASSERT_EQ(report.rows.size(), 4u);
  ASSERT_TRUE(report.rows[1].failed);
  EXPECT_NE(report.rows[1].failed->find("no more room"), std::string::npos);
  EXPECT_EQ(report.rows[1].figures.positions, 0u);
  ASSERT_TRUE(report.rows[2].failed);
  EXPECT_NE(report.rows[2].failed->find("finite"), std::string::npos);
  EXPECT_FALSE(report.rows[3].failed);
  EXPECT_EQ(report.rows[3].figures.positions, 3u * 255);
}

TEST_F(PerplexityTest, RefusesARecipeThatCannotBeMadeBeforeReadingAnything) {
  const std::vector<std::string> recipes{"fulll"};
  std::size_t calls = 0;
  const auto report = measure_perplexity(*engine_, windows_, recipes, source(), {.block = 128},
                                         [&](std::size_t, std::size_t) { ++calls; });
  EXPECT_FALSE(report);
  EXPECT_EQ(calls, 0u);
}

TEST_F(PerplexityTest, KeepsWhatIsDoneWhenCancelled) {
  std::atomic<bool> cancel{false};
  engine_->set_cancel_flag(&cancel);
  const std::vector<std::string> recipes{"full:store=f32"};
  const auto report = measure_perplexity(*engine_, windows_, recipes, source(), {.block = 128},
                                         [&](std::size_t done, std::size_t total) {
                                           EXPECT_EQ(total, 2u * 3 * 512);
                                           // In the second window, between the two caches.
                                           if (done == 2 * 512 + 2 * 384 + 128) cancel = true;
                                         });
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->cancelled);
  EXPECT_EQ(report->windows, 1u);
  EXPECT_EQ(report->rows[0].figures.positions, 255u + 255u);
  EXPECT_EQ(report->rows[1].figures.positions, 255u + 128u);
  EXPECT_NEAR(report->rows[1].figures.dppl_pct, 0.0, 0.1);  // over its own positions
}

TEST(LogSoftmax, OfF32ExponentialsIsThatOfF64) {
  std::vector<float> a(5003), b(5003), scratch;
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = 12.0f * std::sin(0.37f * static_cast<float>(i * i % 1009));
    b[i] = a[i] + 0.3f * std::cos(static_cast<float>(i));
  }
  const LogSoftmax p = log_softmax(a, scratch), q = log_softmax(b, scratch);
  EXPECT_NEAR(p.log_sum, log_sum_exp(a), 1e-6);
  EXPECT_EQ(p.best, argmax(a));
  EXPECT_NEAR(kl_divergence(a, p, b, q, scratch), kl_divergence(a, b), 3e-7);
  EXPECT_EQ(kl_divergence(a, p, a, p, scratch), 0.0);
  b[17] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(log_softmax(b, scratch).log_sum));
}

TEST(Windows, AreCutAsLlamaCppCutsThem) {
  const auto tokenizer = Tokenizer::open(kModel).value();
  const std::string text = "Once upon a time there was a little girl who loved to play outside.";
  const auto tokens = tokenizer->encode(text, {}).value();
  const auto windows = cut_windows(*tokenizer, text, {.length = 8, .most = 0, .least = 0}).value();
  ASSERT_EQ(windows.size(), tokens.size() / 8);
  for (std::size_t w = 0; w < windows.size(); ++w) {
    EXPECT_EQ(windows[w][0], 1);  // begin of text
    for (std::size_t i = 1; i < 8; ++i) EXPECT_EQ(windows[w][i], tokens[w * 8 + i]);
  }
  const auto short_last =
      cut_windows(*tokenizer, text, {.length = tokens.size() - 3, .most = 0, .least = 2}).value();
  ASSERT_EQ(short_last.size(), 2u);
  EXPECT_EQ(short_last[1].size(), 3u);
  EXPECT_FALSE(cut_windows(*tokenizer, text, {.length = 1000, .most = 0, .least = 0}));
}

}  // namespace
}  // namespace kvspan::testing
