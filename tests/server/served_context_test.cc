// SPDX-License-Identifier: Apache-2.0
// A ServedContext does what libllama's memory does for the same calls, and what it does more for the server: it never
// refuses to go back or to load.
#include "server/served_context.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvspan::server {
namespace {

class ServedContextTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    model_ = llama_model_load_from_file(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf", llama_model_default_params());
    ASSERT_NE(model_, nullptr);
  }
  static void TearDownTestSuite() { llama_model_free(model_); }

  static std::unique_ptr<ServedContext> make(const std::string& recipe, ServeOptions options = {},
                                             int threads = 1) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 2048;
    params.n_batch = params.n_ubatch = 64;
    params.n_seq_max = 4;
    params.n_threads = params.n_threads_batch = threads;
    auto made = ServedContext::create(model_, params, {recipe, std::nullopt}, "", options);
    EXPECT_TRUE(made) << (made ? "" : made.error().message);
    return made ? *std::move(made) : nullptr;
  }

  static ServeOptions limited_to(std::size_t bytes) {
    ServeOptions options;
    options.kv_budget_bytes = bytes;
    return options;
  }
  static ServeOptions scoring(WantedScores& wanted) {
    ServeOptions options;
    options.wanted_scores = &wanted;
    return options;
  }

  static llama_token token_at(int i, int text) { return 3 + (i * 7 + text * 31) % 500; }

  // Tokens [from, to) of a made-up text, in batches of up to 64; the result of the last is asked for.
  static std::int32_t read(ServedContext& context, llama_seq_id id, int from, int to, int text = 0) {
    for (int at = from; at < to; at += 64) {
      BatchRecord batch;
      for (int i = at; i < std::min(to, at + 64); ++i) batch.rows.push_back({token_at(i, text), i, id, i + 1 == to});
      if (const std::int32_t status = context.process(batch); status != 0) return status;
    }
    return 0;
  }
  static std::vector<float> logits(ServedContext& context) {
    const float* row = llama_get_logits_ith(context.native(), -1);
    return {row, row + llama_vocab_n_tokens(llama_model_get_vocab(model_))};
  }
  // Of the whole text in a context of its own.
  static std::vector<float> expected(const std::string& recipe, int tokens, int text = 0) {
    const auto context = make(recipe);
    EXPECT_EQ(read(*context, 0, 0, tokens, text), 0);
    return logits(*context);
  }

  inline static llama_model* model_ = nullptr;
};

TEST_F(ServedContextTest, PromisesTheContextThatLibllamaWould) {
  const auto context = make("full");
  EXPECT_EQ(context->context_length(), 2048u);
  EXPECT_EQ(context->sequence_length(), 512u);
  EXPECT_EQ(context->most_sequences(), 4u);
}

TEST_F(ServedContextTest, GoesBackAndOn) {
  const auto context = make("full");
  EXPECT_EQ(context->position_min(0), -1);
  EXPECT_EQ(context->position_max(0), -1);
  ASSERT_EQ(read(*context, 0, 0, 100), 0);
  EXPECT_EQ(context->position_min(0), 0);
  EXPECT_EQ(context->position_max(0), 99);
  EXPECT_TRUE(context->remove(0, 60, -1));
  EXPECT_EQ(context->position_max(0), 59);
  ASSERT_EQ(read(*context, 0, 60, 120), 0);
  EXPECT_EQ(logits(*context), expected("full", 120));
}

TEST_F(ServedContextTest, RefusesAHoleAndAWrongPosition) {
  const auto context = make("full");
  ASSERT_EQ(read(*context, 0, 0, 100), 0);
  EXPECT_FALSE(context->remove(0, 10, 20));
  EXPECT_EQ(context->position_max(0), 99);
  EXPECT_EQ(read(*context, 0, 101, 102), -1);
  BatchRecord batch;
  batch.refused = "no";
  batch.rows = {{5, 100, 0, true}};
  EXPECT_EQ(context->process(batch), -1);
  EXPECT_EQ(read(*context, 0, 100, 101), 0);
}

TEST_F(ServedContextTest, ASequenceThatCannotGoBackIsReadAgain) {
  const std::string recipe = "streaming:sink=4,size=32";
  const auto context = make(recipe);
  EXPECT_FALSE(context->always_goes_back());
  ASSERT_EQ(read(*context, 0, 0, 200), 0);
  EXPECT_GT(context->position_min(0), 100);
  EXPECT_TRUE(context->remove(0, 64, -1));
  EXPECT_EQ(context->position_min(0), std::numeric_limits<llama_pos>::max());
  EXPECT_EQ(context->position_max(0), 63);
  ASSERT_EQ(read(*context, 0, 64, 128), 0);
  EXPECT_EQ(logits(*context), expected(recipe, 128));
  EXPECT_EQ(context->figures().counts.restored_tokens, 64u);
}

TEST_F(ServedContextTest, CopiesGoTheirOwnWays) {
  const auto context = make("quant:bits=8");
  ASSERT_EQ(read(*context, 0, 0, 64), 0);
  context->copy(0, 1, -1, -1);
  ASSERT_EQ(read(*context, 1, 64, 80, 1), 0);
  ASSERT_EQ(read(*context, 0, 64, 128), 0);
  EXPECT_EQ(logits(*context), expected("quant:bits=8", 128));
  EXPECT_EQ(context->position_max(1), 79);
}

TEST_F(ServedContextTest, StatesComeBackBitForBit) {
  const auto context = make("bands:calib=online,learn=64");
  ASSERT_EQ(read(*context, 0, 0, 200), 0);
  std::vector<std::uint8_t> state(context->state_bytes(0));
  ASSERT_EQ(context->take_state(0, state), state.size());
  ASSERT_EQ(read(*context, 0, 200, 210), 0);
  const auto wanted = logits(*context);
  ASSERT_EQ(context->put_state(2, state), state.size());
  EXPECT_EQ(context->position_max(2), 199);
  ASSERT_EQ(read(*context, 2, 200, 210), 0);
  EXPECT_EQ(logits(*context), wanted);
}

TEST_F(ServedContextTest, ADamagedStateIsReadAnewFromItsTokens) {
  const auto context = make("quant:bits=8");
  ASSERT_EQ(read(*context, 0, 0, 128), 0);
  std::vector<std::uint8_t> state(context->state_bytes(0));
  context->take_state(0, state);
  state.back() ^= 1;
  EXPECT_EQ(context->put_state(1, state), state.size());
  ASSERT_EQ(read(*context, 1, 128, 130), 0);
  const auto again = logits(*context);
  ASSERT_EQ(read(*context, 0, 128, 130), 0);
  EXPECT_EQ(logits(*context), again);
  state[0] ^= 1;
  EXPECT_EQ(context->put_state(1, state), 0u);
}

TEST_F(ServedContextTest, SequencesMakeRoomWithinTheBudget) {
  constexpr std::size_t kBudget = 256 * 1024;
  const auto context = make("full", limited_to(kBudget));
  for (int text = 0; text < 3; ++text) ASSERT_EQ(read(*context, text, 0, 192, text), 0);
  EXPECT_GT(context->figures().counts.dropped_sequences, 0u);
  ASSERT_EQ(read(*context, 0, 192, 200, 0), 0);  // was dropped
  EXPECT_EQ(logits(*context), expected("full", 200, 0));
  EXPECT_LE(context->figures().peak_bytes, kBudget);
  EXPECT_EQ(read(*context, 3, 0, 512, 3), 1);  // more than all of it
}

TEST_F(ServedContextTest, FiguresAreThoseOfTheCaches) {
  const auto context = make("full");
  ASSERT_EQ(read(*context, 1, 0, 100), 0);
  const KvFigures figures = context->figures();
  ASSERT_EQ(figures.sequences.size(), 1u);
  EXPECT_EQ(figures.sequences[0].sequence, 1);
  EXPECT_EQ(figures.tokens, 100);
  EXPECT_EQ(figures.f16_bytes, 100u * 640u);  // docs of the model: 640 bytes a token
  EXPECT_GE(figures.bytes.total, figures.f16_bytes);
  context->clear();
  EXPECT_EQ(context->figures().bytes.total, 0u);
}

// Loads the first 64 tokens of a prompt from another sequence.
class FromSequence : public PrefixBlocks {
 public:
  explicit FromSequence(std::int32_t from) : from_(from) {}
  void load(LlamaCaches& caches, std::int32_t sequence, std::span<const std::int32_t> tokens) override {
    if (sequence == from_ || tokens.size() < 64 || caches.tokens(sequence) >= 64) return;
    const auto bytes = caches.save(from_);
    ASSERT_TRUE(bytes);
    ASSERT_TRUE(caches.load(sequence, *bytes));
    ASSERT_TRUE(caches.truncate(sequence, 64));
  }
  void save(const LlamaCaches&, std::int32_t, std::span<const std::int32_t> tokens, bool prompt_ends) override {
    if (prompt_ends) saved = tokens.size();
  }
  StoreStatistics statistics() const override { return {}; }
  std::size_t saved = 0;

 private:
  std::int32_t from_;
};

TEST_F(ServedContextTest, WhatAPrefixHasLoadedIsNotComputed) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 2048;
  params.n_batch = params.n_ubatch = 128;
  params.n_seq_max = 4;
  params.n_threads = params.n_threads_batch = 1;
  ServeOptions options;
  const auto blocks = std::make_shared<FromSequence>(0);
  options.prefix_blocks = blocks;
  auto made = ServedContext::create(model_, params, {"full", std::nullopt}, "", options);
  ASSERT_TRUE(made);
  ServedContext& context = **made;
  ASSERT_EQ(read(context, 0, 0, 100), 0);
  BatchRecord batch;
  for (int i = 0; i < 100; ++i) batch.rows.push_back({token_at(i, 0), i, 1, i == 99});
  ASSERT_EQ(context.process(batch), 0);
  EXPECT_EQ(context.figures().counts.prefix_tokens, 64u);
  EXPECT_EQ(context.position_max(1), 99);
  EXPECT_EQ(blocks->saved, 100u);
  EXPECT_EQ(context.native_row(99), 35);
  EXPECT_EQ(logits(context), expected("full", 100));
}

// A lost sequence and another one that do not fit together: reading the one again must not drop the
// other, so that the server can try them one by one.
TEST_F(ServedContextTest, ABatchThatDoesNotFitIsLeftAsItIs) {
  const auto unlimited = make("full");
  ASSERT_EQ(read(*unlimited, 0, 0, 193), 0);
  const auto context = make("full", limited_to(unlimited->figures().bytes.total * 3 / 2));
  ASSERT_EQ(read(*context, 1, 0, 192, 1), 0);
  ASSERT_EQ(read(*context, 0, 0, 192, 0), 0);
  ASSERT_EQ(context->position_min(1), std::numeric_limits<llama_pos>::max()) << "was dropped";
  const std::uint64_t dropped = context->figures().counts.dropped_sequences;
  BatchRecord both;
  for (const int text : {0, 1}) both.rows.push_back({token_at(192, text), 192, text, true});
  EXPECT_EQ(context->process(both), 1) << "no room";
  EXPECT_EQ(context->figures().counts.dropped_sequences, dropped);
  for (const int text : {0, 1}) {
    ASSERT_EQ(read(*context, text, 192, 193, text), 0);
    EXPECT_EQ(logits(*context), expected("full", 193, text));
  }
}

// A clock on which other programs take threads off their processors, or not.
namespace machine {
bool busy = false;
ProcessTimes now;
ProcessTimes times() {
  now.wall_s += 0.02;
  now.cpu_s += 0.02;
  if (busy) now.switches += 20;
  return now;
}
}  // namespace machine

TEST_F(ServedContextTest, OneThreadWhileOtherProgramsNeedTheProcessors) {
  for (const bool adapts : {true, false}) {
    machine::busy = false;
    machine::now = {};
    ServeOptions options;
    options.adapt_threads = adapts;
    options.process_times = machine::times;
    const auto context = make("full", options, 2);
    ASSERT_EQ(read(*context, 0, 0, 64), 0);
    EXPECT_EQ(llama_n_threads(context->native()), 2);
    machine::busy = true;
    ASSERT_EQ(read(*context, 0, 64, 192), 0);
    EXPECT_EQ(llama_n_threads(context->native()), adapts ? 1 : 2);
    EXPECT_EQ(llama_n_threads_batch(context->native()), adapts ? 1 : 2);
    machine::busy = false;
    for (int i = 192; i < 202; ++i) ASSERT_EQ(read(*context, 0, i, i + 1), 0);
    EXPECT_EQ(llama_n_threads(context->native()), 2) << "calm again";
  }
}

// Row by row, each with its result.
TEST_F(ServedContextTest, ScoresOfAPromptAreThoseOfItsRows) {
  constexpr int kTokens = 150;  // more than two batches
  // Sums in another order, of 1,200 + 150 numbers in each of five layers, derived in tests/server/killed_stores.py.
  const double kRounding = 2 * 20 * 6 * std::sqrt(5 * 1350.0) * 0x1p-24;
  std::vector<llama_token> tokens;
  for (int i = 0; i < kTokens; ++i) tokens.push_back(token_at(i, 0));
  WantedScores wanted_scores;
  const auto context = make("full:store=f32", scoring(wanted_scores));
  const auto wanted = wanted_scores.want(tokens, 2);
  ASSERT_EQ(read(*context, 1, 0, kTokens), 0);
  const auto scores = wanted_scores.take(*wanted);
  ASSERT_TRUE(scores);
  ASSERT_EQ(scores->size(), tokens.size() - 1);
  const std::vector<float> last = logits(*context), right = expected("full:store=f32", kTokens);
  const auto plain = make("full:store=f32");
  for (int i = 0; i + 1 < kTokens; ++i) {
    BatchRecord batch;
    batch.rows.push_back({tokens[static_cast<std::size_t>(i)], i, 0, true});
    ASSERT_EQ(plain->process(batch), 0);
    const TokenScore score = score_token(logits(*plain), tokens[static_cast<std::size_t>(i) + 1], 2);
    const TokenScore& found = (*scores)[static_cast<std::size_t>(i)];
    EXPECT_NEAR(found.logprob, score.logprob, kRounding) << i;
    EXPECT_NEAR(found.top[1].second, score.top[1].second, kRounding) << i;
  }
  // What follows the prompt is as without.
  for (std::size_t i = 0; i < last.size(); ++i) EXPECT_NEAR(last[i], right[i], kRounding) << i;
}

// Prompts that begin alike, read in turns by batches that end within what they share.
TEST_F(ServedContextTest, ScoresOfPromptsThatBeginAlikeAreTheirOwn) {
  const auto text = [](int tail) {
    std::vector<llama_token> tokens;
    for (int i = 0; i < 170; ++i) tokens.push_back(token_at(i, i < 100 ? 0 : tail));
    return tokens;
  };
  const auto read_part = [](ServedContext& context, llama_seq_id id, int from, const std::vector<llama_token>& tokens) {
    const int end = static_cast<int>(tokens.size());
    BatchRecord batch;
    for (int i = from; i < std::min(end, from + 64); ++i) batch.rows.push_back({tokens[static_cast<std::size_t>(i)], i, id, i + 1 == end});
    return context.process(batch);
  };
  const auto scores_of = [&](int order) {
    WantedScores wanted;
    const auto context = make("full", scoring(wanted));
    const auto first = wanted.want(text(1), 1), second = wanted.want(text(2), 1);
    for (int from = 0; from < 170; from += 64) {
      for (const int tail : {1 + order, 2 - order}) EXPECT_EQ(read_part(*context, tail, from, text(tail)), 0);
    }
    return std::pair(wanted.take(*first), wanted.take(*second));
  };
  const auto alone = [&](int tail) {
    WantedScores wanted;
    const auto context = make("full", scoring(wanted));
    const auto one = wanted.want(text(tail), 1);
    for (int from = 0; from < 170; from += 64) EXPECT_EQ(read_part(*context, 0, from, text(tail)), 0);
    return wanted.take(*one);
  };
  const auto right_first = alone(1), right_second = alone(2);
  ASSERT_TRUE(right_first && right_second);
  for (const int order : {0, 1}) {
    const auto [first, second] = scores_of(order);
    ASSERT_TRUE(first && second) << order;
    for (std::size_t i = 0; i < right_first->size(); ++i) {
      EXPECT_EQ((*first)[i].logprob, (*right_first)[i].logprob) << order << " " << i;
      EXPECT_EQ((*second)[i].logprob, (*right_second)[i].logprob) << order << " " << i;
    }
  }
}

TEST_F(ServedContextTest, ASequenceThatTurnsIntoAnotherTextIsNotScored) {
  std::vector<llama_token> tokens;
  for (int i = 0; i < 128; ++i) tokens.push_back(token_at(i, 0));
  WantedScores wanted;
  const auto context = make("full", scoring(wanted));
  const auto prompt = wanted.want(tokens, 1);
  ASSERT_EQ(read(*context, 1, 0, 64, 1), 0);
  std::vector<std::uint8_t> other(context->state_bytes(1));
  context->take_state(1, other);
  BatchRecord batch;
  for (int i = 0; i < 64; ++i) batch.rows.push_back({token_at(i, 0), i, 0, false});
  ASSERT_EQ(context->process(batch), 0);
  ASSERT_EQ(context->put_state(0, other), other.size());
  ASSERT_EQ(read(*context, 0, 64, 128, 0), 0);
  EXPECT_FALSE(wanted.take(*prompt)) << "its first tokens were another text's";
  ASSERT_TRUE(context->remove(0, 0, -1));
  ASSERT_EQ(read(*context, 0, 0, 128, 0), 0);
  EXPECT_TRUE(wanted.take(*prompt));
}

TEST_F(ServedContextTest, LayersHoldWhatAllHold) {
  for (const char* recipe : {"full", "quant:bits=4,sink=4,recent=16", "bands:calib=online,learn=64"}) {
    const auto context = make(recipe);
    ASSERT_EQ(read(*context, 0, 0, 300), 0);
    ASSERT_EQ(read(*context, 2, 0, 90, 1), 0);
    const KvFigures figures = context->figures();
    ASSERT_EQ(figures.layer_bytes.size(), 5u);
    std::size_t sum = 0;
    for (const std::size_t bytes : figures.layer_bytes) sum += bytes;
    EXPECT_EQ(sum, figures.bytes.total) << recipe;
    EXPECT_FALSE(figures.certificates.has_value()) << recipe;
  }
}

TEST_F(ServedContextTest, CertificatesAreSampledWhereTheRecipeHasThem) {
  const auto context = make("quant:bits=4,sink=4,recent=16,certify=on");
  ASSERT_EQ(read(*context, 0, 0, 200), 0);
  for (int i = 200; i < 260; ++i) ASSERT_EQ(read(*context, 0, i, i + 1), 0);
  const auto certificates = context->figures().certificates;
  ASSERT_TRUE(certificates.has_value());
  ASSERT_GE(certificates->samples, 1u);
  EXPECT_GT(certificates->logits.most, 0.0);
  EXPECT_GE(certificates->logits.sum, certificates->logits.most);
  EXPECT_GT(certificates->output.most, 0.0);
  EXPECT_LE(certificates->weights.most, 2.0);  // |a - a^|_1 of two distributions
  EXPECT_LT(certificates->layer, 5);
}

}  // namespace
}  // namespace kvspan::server
