// SPDX-License-Identifier: Apache-2.0
#include "eval/bench/bench.h"

#include <gtest/gtest.h>

#include "eval/verify/verify.h"

namespace kvspan {
namespace {

const std::string kModel = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");

std::vector<Token> some_tokens(std::size_t count) {
  std::vector<Token> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<Token>(3 + i * 7 % 400);
  return tokens;
}

TEST(Bench, RowsComeByDepthAndSubjectWithTheirBytes) {
  BenchOptions options;
  options.model_path = kModel;
  options.subjects = {{"kvspan", "full"}, {"llama.cpp", "f16"}};
  options.depths = {16, 64};
  options.tokens = some_tokens(80);
  options.context = 256;
  options.repeats = 6;
  std::size_t last_done = 0, last_total = 0;
  const auto rows = run_bench(options, [&](std::size_t done, std::size_t total, std::string_view) {
    EXPECT_GE(done, last_done);
    last_done = done;
    last_total = total;
  });
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_EQ(last_done, last_total);
  ASSERT_EQ(rows->size(), 4u);
  // 5 layers, 4 KV heads of 8, keys and values, 2 bytes: 640 a token.
  for (std::size_t i = 0; i < 4; ++i) {
    const BenchRow& row = (*rows)[i];
    EXPECT_EQ(row.depth, i < 2 ? 16 : 64);
    EXPECT_EQ(row.subject.engine, i % 2 ? "llama.cpp" : "kvspan");
    EXPECT_GT(row.decode_tok_s, 0.0);
    EXPECT_GT(row.prefill_tok_s, 0.0);
    EXPECT_EQ(row.kv_bytes_full, 640u * static_cast<unsigned>(row.depth));
    EXPECT_GE(row.kv_bytes, row.kv_bytes_full);
    EXPECT_GT(row.peak_rss_bytes, row.kv_bytes);
  }
  EXPECT_GT((*rows)[0].attn_ms, 0.0);
}

TEST(Bench, AFailureInAWorkerIsTheCallersError) {
  BenchOptions options;
  options.model_path = kModel;
  options.subjects = {{"kvspan", "no_such_method"}};
  options.depths = {16};
  options.tokens = some_tokens(20);
  const auto rows = run_bench(options, nullptr);
  ASSERT_FALSE(rows);
  EXPECT_NE(rows.error().message.find("no_such_method"), std::string::npos) << rows.error().message;
}

TEST(Verify, TheEngineAgreesWithLlamaCppAndABrokenOneDoesNot) {
  auto engine = Engine::load(kModel, {2, 64});
  ASSERT_TRUE(engine) << engine.error().message;
  PeerOptions options;
  options.threads = 2;
  options.context = 512;
  options.block = 64;
  options.kv_type = "f32";
  options.flash_attention = false;
  auto peer = PeerLlama::load(kModel, options);
  ASSERT_TRUE(peer) << peer.error().message;
  const auto reference = peer_logits(std::move(*peer), options);
  std::vector<std::unique_ptr<LogitSource>> subjects;
  subjects.push_back(engine_logits(**engine, "full:store=f32").value());
  const auto tokens = some_tokens(300);
  const VerifyOptions verify{.compared = 200, .decoded = 20, .block = 64};
  const auto rows = verify_logits(*reference, subjects, tokens, verify, nullptr);
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_GE(rows->front().compared, 200u);
  EXPECT_LE(rows->front().kl_mean, 1e-6);
  EXPECT_LE(rows->front().kl_decoded, 1e-6);
  EXPECT_EQ(rows->front().top1, 1.0);

  // The same tokens, two of them swapped: every figure must notice.
  auto swapped = tokens;
  std::swap(swapped[100], swapped[140]);
  auto second = PeerLlama::load(kModel, options);
  ASSERT_TRUE(second);
  class Swapped final : public LogitSource {
   public:
    Swapped(std::unique_ptr<LogitSource> inner, std::vector<Token> tokens)
        : inner_(std::move(inner)), tokens_(std::move(tokens)) {}
    std::string name() const override { return "swapped"; }
    Status read(std::span<const Token> part) override {
      at_ += part.size();
      return inner_->read(std::span(tokens_).subspan(at_ - part.size(), part.size()));
    }
    std::span<const float> logits(std::int32_t i) const override { return inner_->logits(i); }

   private:
    std::unique_ptr<LogitSource> inner_;
    std::vector<Token> tokens_;
    std::size_t at_ = 0;
  };
  const auto again = peer_logits(std::move(*second), options);
  subjects.clear();
  subjects.push_back(
      std::make_unique<Swapped>(engine_logits(**engine, "full:store=f32").value(), swapped));
  const auto broken = verify_logits(*again, subjects, tokens, verify, nullptr);
  ASSERT_TRUE(broken) << broken.error().message;
  EXPECT_GE(broken->front().kl_mean, 1e-3);
  EXPECT_LT(broken->front().top1, 1.0);
}

}  // namespace
}  // namespace kvspan
