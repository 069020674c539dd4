// SPDX-License-Identifier: Apache-2.0
// Answers at temperature 0 equal stock llama.cpp's, token by token: plain, with a grammar, a JSON
// schema, a LoRA adapter, and whatever a draft model guesses.
#include <gtest/gtest.h>
#include <json-schema-to-grammar.h>
#include <unistd.h>

#include "base/fail.h"
#include "llama/generate.h"
#include "tests/llama/random_adapter.h"
#include "tests/llama/stock_llama.h"

namespace kvspan::testing {
namespace stock_answers_test {

const std::string kModel = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");
constexpr int kTokens = 40;

class StockAnswers : public ::testing::Test {
 protected:
  void SetUp() override {
    tokenizer_ = Tokenizer::open(kModel).value();
    prompt_ = tokenizer_->encode("Once upon a time", {}).value();
    load({.block = 64});
    ASSERT_TRUE(adapter_.written());
  }
  void load(const EngineOptions& options) {
    auto engine = Engine::load(kModel, options);
    ASSERT_TRUE(engine) << engine.error().message;
    engine_ = std::move(*engine);
  }
  std::unique_ptr<Draft> make_draft(const EngineOptions& options, int most) {
    auto draft = Draft::open(kModel, options, *engine_, most);
    EXPECT_TRUE(draft) << draft.error().message;
    EXPECT_TRUE((*draft)->start(prompt_));
    return std::move(*draft);
  }
  Result<Generation> try_answer(const SamplerOptions& sampling, GenerateOptions options,
                                const std::string& recipe = "full") {
    cache_ = make_cache(engine_->cache_shape(), recipe).value();
    KVSPAN_CHECK_OK(engine_->prefill(*cache_, prompt_));
    KVSPAN_TRY(const auto sampler, Sampler::make(sampling, *engine_));
    sampler->start(prompt_);
    return generate(*engine_, *tokenizer_, *cache_, *sampler, options, nullptr);
  }
  Generation answer(const SamplerOptions& sampling = {.temperature = 0}, Draft* draft = nullptr) {
    auto made = try_answer(sampling, {.max_tokens = kTokens, .stop = {}, .draft = draft});
    EXPECT_TRUE(made) << made.error().message;
    return made ? *std::move(made) : Generation{};
  }

  const RandomAdapter adapter_{::testing::TempDir() + "/kvspan_adapter_" +
                               std::to_string(getpid()) + ".gguf"};
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<KvCache> cache_;
  std::vector<Token> prompt_;
};

TEST_F(StockAnswers, Plain) {
  const auto stock = stock_answer(kModel, prompt_, kTokens);
  ASSERT_EQ(stock.size(), std::size_t{kTokens});
  EXPECT_EQ(answer().tokens, stock);
}

TEST_F(StockAnswers, WithAGrammar) {
  const std::string grammar =
      "root ::= line line line\n"
      "line ::= \"- \" word (\" \" word){1,3} \"\\n\"\n"
      "word ::= [a-z]{2,8}\n";
  const auto stock =
      stock_answer(kModel, prompt_, kTokens, {.grammar = {COMMON_GRAMMAR_TYPE_USER, grammar}});
  const Generation held = answer({.temperature = 0, .grammar = grammar});
  EXPECT_EQ(held.tokens, stock);
  EXPECT_EQ(held.text.substr(0, 2), "- ");
}

TEST_F(StockAnswers, WithAJsonSchema) {
  const std::string schema =
      R"({"type": "object", "required": ["name", "age"], "additionalProperties": false,
          "properties": {"name": {"enum": ["Lily", "Tim"]},
                         "age": {"type": "integer", "minimum": 3, "maximum": 9}}})";
  const std::string grammar = json_schema_to_grammar(common_json::parse(schema));
  const auto stock = stock_answer(kModel, prompt_, kTokens,
                                  {.grammar = {COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT, grammar}});
  const Generation held = answer({.temperature = 0, .json_schema = schema});
  EXPECT_EQ(held.tokens, stock);
  EXPECT_EQ(held.reason, StopReason::kEndToken);
  EXPECT_NE(held.text.find("\"age\""), std::string::npos) << held.text;
}

TEST_F(StockAnswers, WithALoraAdapter) {
  const Generation without = answer();
  load({.block = 64, .adapters = {{adapter_.path(), 1.0f}}});
  const auto stock = stock_answer(kModel, prompt_, kTokens, {.adapter = adapter_.path()});
  ASSERT_EQ(stock.size(), std::size_t{kTokens});
  EXPECT_EQ(answer().tokens, stock);
  EXPECT_NE(without.tokens, stock);
}

// Four times the trained context. A cache of keys before RoPE turns them back and forth by what was
// read off the graph: of full rank it answers the same.
TEST_F(StockAnswers, WithStretchedPositions) {
  std::string text;
  for (int i = 0; i < 120; ++i) text += "One day Lily saw a big red ball in the park. ";
  prompt_ = tokenizer_->encode(text + "Once upon a time", {}).value();
  ASSERT_GT(prompt_.size(), 1800u);
  ASSERT_LT(prompt_.size(), 2048u - kTokens);
  struct Case {
    RopeOptions rope;
    void (*adjust)(llama_context_params&);
  };
  using Scaling = RopeOptions::Scaling;
  const Case cases[] = {
      {{.scaling = Scaling::kLinear},
       [](llama_context_params& p) {
         p.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_LINEAR;
         p.rope_freq_scale = 0.25f;
       }},
      {{.scaling = Scaling::kYarn},
       [](llama_context_params& p) {
         p.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_YARN;
         p.rope_freq_scale = 0.25f;
       }},
      {{.scaling = Scaling::kYarn, .scale = 0.125f, .yarn_context = 256, .yarn_beta_fast = 16.0f},
       [](llama_context_params& p) {
         p.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_YARN;
         p.rope_freq_scale = 0.125f;
         p.yarn_orig_ctx = 256;
         p.yarn_beta_fast = 16.0f;
       }},
      {{.base = 40000.0f}, [](llama_context_params& p) { p.rope_freq_base = 40000.0f; }},
  };
  std::vector<std::vector<Token>> answers;
  for (const Case& c : cases) {
    StockOptions options;
    options.adjust = [&](llama_context_params& p) {
      p.n_ctx = p.n_batch = 2048;
      c.adjust(p);
    };
    const auto stock = stock_answer(kModel, prompt_, kTokens, options);
    ASSERT_EQ(stock.size(), std::size_t{kTokens});
    load({.block = 64, .context = 2048, .rope = c.rope});
    EXPECT_EQ(answer().tokens, stock);
    const auto turned = try_answer({.temperature = 0}, {.max_tokens = kTokens, .stop = {}},
                                   "fd:rope=pre,rk=8,rv=8,store=f32,bases=f32,first=full,tau=1");
    ASSERT_TRUE(turned) << turned.error().message;
    EXPECT_EQ(turned->tokens, stock);
    answers.push_back(stock);
  }
  EXPECT_NE(answers[0], answers[1]);
  EXPECT_NE(answers[1], answers[2]);
}

TEST_F(StockAnswers, WithADraftThatIsAlwaysRight) {
  const auto draft = make_draft({.block = 64}, 4);
  const Generation with = answer({.temperature = 0}, draft.get());
  EXPECT_EQ(with.tokens, stock_answer(kModel, prompt_, kTokens));
  EXPECT_EQ(with.right, with.guessed);
  EXPECT_GE(with.guessed, std::size_t{kTokens} * 3 / 5);
  EXPECT_EQ(cache_->tokens(), static_cast<std::int32_t>(prompt_.size()) + kTokens - 1);
}

TEST_F(StockAnswers, WithADraftThatIsOftenWrong) {
  const auto stock = stock_answer(kModel, prompt_, kTokens);
  for (const int most : {1, 3, 7}) {
    const auto draft = make_draft({.block = 64, .adapters = {{adapter_.path(), 1.0f}}}, most);
    const Generation with = answer({.temperature = 0}, draft.get());
    EXPECT_EQ(with.tokens, stock);
    EXPECT_GT(with.right, 0u);
    EXPECT_LT(with.right, with.guessed);
    EXPECT_EQ(cache_->tokens(), static_cast<std::int32_t>(prompt_.size()) + kTokens - 1);
  }
}

TEST_F(StockAnswers, ADraftChangesNeitherDrawsNorStops) {
  const auto draft = make_draft({.block = 64, .adapters = {{adapter_.path(), 1.0f}}}, 5);
  const SamplerOptions warm{.temperature = 0.9f, .seed = 3};
  EXPECT_EQ(answer(warm, draft.get()).tokens, answer(warm).tokens);
  for (const char* stop : {"Lily", "park", "."}) {
    const Generation without =
        try_answer({.temperature = 0}, {.max_tokens = kTokens, .stop = {stop}}).value();
    const std::int32_t held = cache_->tokens();
    const Generation with =
        try_answer({.temperature = 0},
                   {.max_tokens = kTokens, .stop = {stop}, .draft = draft.get()})
            .value();
    EXPECT_EQ(with.text, without.text);
    EXPECT_EQ(cache_->tokens(), held);
  }
}

TEST_F(StockAnswers, ADraftNeedsACacheThatCanGoBack) {
  const auto draft = make_draft({.block = 64, .adapters = {{adapter_.path(), 1.0f}}}, 5);
  const GenerateOptions options{.max_tokens = kTokens, .stop = {}, .draft = draft.get()};
  for (const char* recipe :
       {"full:store=f32", "quest:keep=16,page=4", "spectral:block=16,sink=4,recent=8,rk=4,rv=4"}) {
    const auto made = try_answer({.temperature = 0}, options, recipe);
    ASSERT_TRUE(made) << recipe << ": " << made.error().message;
    EXPECT_EQ(made->tokens.size(), std::size_t{kTokens});
  }
  const auto refused = try_answer({.temperature = 0}, options, "window:size=16");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("cannot be used with a draft model: cannot go back"),
            std::string::npos)
      << refused.error().message;
}

TEST_F(StockAnswers, ADraftOfAnotherVocabularyIsRefused) {
  const auto draft =
      Draft::open(KVSPAN_SOURCE_DIR "/data/fixtures/llama.gguf", {.block = 64}, *engine_, 3);
  ASSERT_FALSE(draft);
  EXPECT_NE(draft.error().message.find("cannot be a draft for"), std::string::npos);
}

}  // namespace stock_answers_test
}  // namespace kvspan::testing
