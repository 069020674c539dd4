// SPDX-License-Identifier: Apache-2.0
// Scores on a real (if tiny) model, against plain loops over its logits, and with caches that are
// wrong on purpose. The right answers are what the model itself writes, so that the full cache has
// them all right and any fault shows.
#include "eval/tasks/text_tasks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "eval/perplexity/divergence.h"
#include "eval/retrieval/retrieval_measurement.h"
#include "eval/tasks/likelihood.h"
#include "llama/generate.h"
#include "tests/eval/faulty_cache.h"

namespace kvspan::testing {
namespace text_tasks_test {

const std::string kModel = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");

class TextTasksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto engine = Engine::load(kModel, {2, 64});
    ASSERT_TRUE(engine) << engine.error().message;
    engine_ = std::move(*engine);
    tokenizer_ = Tokenizer::open(kModel).value();
  }
  CacheSource source() {
    return [this](const std::string& recipe) {
      return FaultyCache::make(engine_->cache_shape(), recipe);
    };
  }
  // Sum of log-probabilities of tokens[begin..], every token read alone by a cache of its own.
  Likelihood plainly(const Continuation& continuation) {
    auto cache = make_cache(engine_->cache_shape(), "full").value();
    Likelihood out;
    for (std::size_t i = 0; i + 1 < continuation.tokens.size(); ++i) {
      const BatchPart part{cache.get(), {&continuation.tokens[i], 1}, BatchPart::Logits::kLast};
      EXPECT_TRUE(engine_->decode({&part, 1}));
      if (i + 1 < continuation.begin) continue;
      const auto logits = engine_->logits(0);
      const Token next = continuation.tokens[i + 1];
      out.log_likelihood += logits[static_cast<std::size_t>(next)] - log_sum_exp(logits);
      out.greedy += argmax(logits) == next;
      ++out.tokens;
    }
    return out;
  }
  // What a cache writes after `prompt`, at most so many tokens; whole words.
  std::string written(const std::string& prompt, std::int32_t tokens,
                      const std::string& recipe = "full") {
    auto cache = FaultyCache::make(engine_->cache_shape(), recipe).value();
    EXPECT_TRUE(engine_->prefill(*cache, tokenizer_->encode(prompt, {}).value()));
    auto sampler = Sampler::make({.temperature = 0.0f}, *engine_).value();
    GenerateOptions options;
    options.max_tokens = tokens;
    std::string text =
        generate(*engine_, *tokenizer_, *cache, *sampler, options, nullptr).value().text;
    return text.substr(0, text.rfind(' '));
  }
  Continuation encoded(const std::string& context, const std::string& continuation) {
    return encode_continuation(*tokenizer_, context, continuation, 512).value();
  }
  RowsReport measure(const TextTask& task, const std::vector<std::string>& recipes) {
    auto report = measure_rows(*engine_, task.rows, "full", recipes, source(), task.score);
    EXPECT_TRUE(report) << report.error().message;
    return std::move(*report);
  }
  std::vector<std::string> prompts() const {
    return {"Once upon a time, there was a little dog who lived in a big house with",
            "Lily and Tom went to the park to play on the swings. They saw a",
            "The old man had a red car. Every day he washed the car because",
            "One day, a girl named Sue found a shiny stone in the garden. She wanted",
            "Ben was sad because he lost his toy. His mom said that they would"};
  }
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(TextTasksTest, LikelihoodsAreThoseOfPlainLoops) {
  const std::string context = prompts()[0];
  std::vector<Continuation> rows;
  // Together 4 long ones exceed the block of 64 tokens, so that both ways of reading are taken.
  for (const char* end :
       {" his mom.",
        " a very long tail and many friends who came to play with him every day in the "
        "garden behind the house, where there was a tall tree and a small pond.",
        " Tom", " three cats, two birds and a very small mouse that liked to eat cheese."}) {
    rows.push_back(encoded(context, end));
  }
  rows.push_back(encoded("Once upon a time, there was a cat", " his mom."));  // shares less
  auto cache = make_cache(engine_->cache_shape(), "full").value();
  const auto found = likelihoods(*engine_, *cache, rows).value();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Likelihood expected = plainly(rows[i]);
    EXPECT_EQ(found[i].tokens, expected.tokens);
    EXPECT_EQ(found[i].tokens, rows[i].tokens.size() - rows[i].begin);
    EXPECT_EQ(found[i].greedy, expected.greedy);
    // f16 rows and another order of sums: some 1e-3 of each token's nats.
    EXPECT_NEAR(found[i].log_likelihood, expected.log_likelihood,
                2e-3 * static_cast<double>(expected.tokens));
  }
  // What all have in common stays in the cache; the last shared token is read by each.
  EXPECT_GT(cache->tokens(), 3);
  EXPECT_LT(static_cast<std::size_t>(cache->tokens()), rows.back().begin);
}

TEST_F(TextTasksTest, LongTargetsAreReadInBlocks) {
  std::string story = prompts()[1];
  const Continuation row = encoded("One", story + written(story, 150));
  ASSERT_GT(row.tokens.size(), 130u);
  auto cache = make_cache(engine_->cache_shape(), "full").value();
  const auto found = likelihoods(*engine_, *cache, {&row, 1}).value();
  const Likelihood expected = plainly(row);
  EXPECT_EQ(found[0].tokens, expected.tokens);
  EXPECT_NEAR(found[0].log_likelihood, expected.log_likelihood,
              2e-3 * static_cast<double>(expected.tokens));
}

TEST_F(TextTasksTest, SpacesBeforeAContinuationCountToIt) {
  const Continuation a = encoded("Once upon a time", " there was");
  const Continuation b = encoded("Once upon a time ", "there was");
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.begin, b.begin);
  EXPECT_EQ(a.begin, tokenizer_->encode("Once upon a time", {}).value().size());
}

TEST_F(TextTasksTest, ContextsThatAreTooLongLoseTheirBeginning) {
  const Continuation whole = encoded("Once upon a time there was a dog", " and a cat");
  const auto cut = encode_continuation(*tokenizer_, "Once upon a time there was a dog",
                                       " and a cat", whole.tokens.size() - 3)
                       .value();
  EXPECT_TRUE(cut.truncated);
  EXPECT_EQ(cut.tokens.size(), whole.tokens.size() - 2);  // the last is not read
  EXPECT_EQ(cut.tokens.size() - cut.begin, whole.tokens.size() - whole.begin);
  EXPECT_EQ(cut.tokens.back(), whole.tokens.back());
  EXPECT_FALSE(encode_continuation(*tokenizer_, "Once", " upon a time there was", 2));
  EXPECT_FALSE(encode_continuation(*tokenizer_, "Once", "", 100));
}

TEST_F(TextTasksTest, ChoicesAreJudgedByHand) {
  ChoiceRow row;
  const std::string context = prompts()[2];
  for (const char* choice :
       {"it was dirty.", "he", "the big dog liked it very much and ran away."}) {
    row.branches.push_back(
        {context, std::string(" ") + choice, double(std::string(choice).size())});
  }
  std::vector<double> sums, norms;
  for (const ChoiceBranch& branch : row.branches) {
    sums.push_back(plainly(encoded(branch.context, branch.continuation)).log_likelihood);
    norms.push_back(sums.back() / branch.characters);
  }
  const auto best = [](const std::vector<double>& v) {
    return static_cast<std::size_t>(std::max_element(v.begin(), v.end()) - v.begin());
  };
  for (std::size_t gold = 0; gold < 3; ++gold) {
    row.gold = gold;
    const auto task = choice_task(*engine_, *tokenizer_, {&row, 1}, true, "t").value();
    ASSERT_EQ(task.metrics.size(), 3u);
    const auto report = measure(task, {});
    const auto& values = report.recipes[0].rows[0].metrics;
    EXPECT_EQ(values[0].value, best(sums) == gold ? 1.0 : 0.0);
    EXPECT_EQ(values[1].value, best(norms) == gold ? 1.0 : 0.0);
    EXPECT_NEAR(values[2].value, -sums[gold], 0.05);
  }
}

TEST_F(TextTasksTest, EveryMetricCatchesABrokenCacheAndNoneAccusesASoundOne) {
  std::vector<ChoiceRow> choices;
  std::vector<TargetRow> targets;
  std::vector<RetrievalSample> samples;
  for (const std::string& prompt : prompts()) {
    const std::string own = written(prompt, 24);
    ASSERT_GT(own.size(), 20u);
    targets.push_back({prompt, own});
    samples.push_back({prompt, "", {own}});
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    ChoiceRow row;
    row.gold = i % 2;
    // The other answer is what the broken cache writes.
    for (std::size_t b = 0; b < 2; ++b) {
      const std::string text =
          b == row.gold ? targets[i].target : written(targets[i].prompt, 24, "loses-a-head");
      row.branches.push_back({targets[i].prompt, text, double(text.size())});
    }
    choices.push_back(row);
  }
  RetrievalTask asked;
  asked.answer_tokens = 24;
  std::vector<TextTask> tasks;
  tasks.push_back(choice_task(*engine_, *tokenizer_, choices, true, "c").value());
  tasks.push_back(target_task(*engine_, *tokenizer_, targets, "t").value());
  tasks.push_back(last_word_task(*engine_, *tokenizer_, targets, "l").value());
  tasks.push_back({{{"score", Metric::Kind::kShare}},
                   samples.size(),
                   0,
                   retrieval_scorer(*engine_, *tokenizer_, asked, samples, PromptForm::kPlain)});
  for (const TextTask& task : tasks) {
    const auto report = measure(task, {"full", "loses-a-head", "not-finite"});
    ASSERT_EQ(report.rows, targets.size());
    const RecipeOutcome& full = report.recipes[0];
    for (std::size_t m = 0; m < task.metrics.size(); ++m) {
      const Metric& metric = task.metrics[m];
      SCOPED_TRACE(metric.name);
      const auto sound = figures_of(metric, m, full, report.recipes[1], {});
      EXPECT_EQ(sound.against_reference.difference, 0.0);
      EXPECT_EQ(sound.against_reference.p, 1.0);
      const auto broken = figures_of(metric, m, full, report.recipes[2], {});
      if (metric.kind == Metric::Kind::kShare) {
        // By characters a longer answer of the broken cache may win once.
        EXPECT_GE(sound.value, metric.name == "acc_norm" ? 0.8 : 1.0);
        EXPECT_LT(broken.value, sound.value - 0.1);
      } else {
        EXPECT_GT(broken.against_reference.difference, 0.1);
        EXPECT_GT(broken.against_reference.interval.low, 0.0);
      }
    }
    ASSERT_TRUE(report.recipes[3].failed);
    EXPECT_NE(report.recipes[3].failed->find("finite"), std::string::npos);
    EXPECT_TRUE(report.recipes[3].rows.empty());
  }
}

TEST_F(TextTasksTest, AnswersEndOnceTheyHaveAllThatIsAskedFor) {
  const std::string own = written(prompts()[3], 40);
  const std::size_t word = own.find(' ', own.size() / 3);
  const std::string asked = own.substr(word, own.find(' ', word + 1) - word);
  const std::vector<RetrievalSample> samples{{prompts()[3], "", {asked}},
                                             {prompts()[3], "", {asked, "xyzzy"}}};
  RetrievalTask task;
  task.answer_tokens = 60;
  const auto score = retrieval_scorer(*engine_, *tokenizer_, task, samples, PromptForm::kPlain);
  auto cache = make_cache(engine_->cache_shape(), "full").value();
  const auto found = score(*cache, 0).value();
  EXPECT_EQ(found.metrics[0].value, 1.0);
  EXPECT_EQ(own.rfind(found.text, 0), 0u);
  EXPECT_LT(found.text.size(), own.size());
  cache->clear();
  const auto half = score(*cache, 1).value();
  EXPECT_EQ(half.metrics[0].value, 0.5);
  EXPECT_GT(half.text.size(), own.size());
  cache->clear();
  const auto chat =
      retrieval_scorer(*engine_, *tokenizer_, task, samples, PromptForm::kChat)(*cache, 0);
  ASSERT_FALSE(chat);  // the model has no template
}

TEST_F(TextTasksTest, OtherRecipesFinishWhenOneFails) {
  std::string longer;
  for (int i = 0; i < 20; ++i) longer += prompts()[static_cast<std::size_t>(i % 5)] + ". ";
  const std::vector<TargetRow> rows{
      {prompts()[0], " his mom"}, {longer, " The end"}, {prompts()[1], " dog"}};
  const auto task = target_task(*engine_, *tokenizer_, rows, "t").value();
  const auto report = measure(task, {"fails-late", "full:store=f32"});
  EXPECT_EQ(report.rows, 3u);
  EXPECT_EQ(report.recipes[0].rows.size(), 3u);
  EXPECT_EQ(report.recipes[1].rows.size(), 1u);
  EXPECT_EQ(*report.recipes[1].failed, "at row 2: no more room");
  EXPECT_EQ(report.recipes[2].rows.size(), 3u);
  EXPECT_FALSE(report.recipes[2].failed);
  // Compared on the rows that both have.
  const auto figures = figures_of(task.metrics[0], 0, report.recipes[0], report.recipes[1], {});
  EXPECT_EQ(figures.against_reference.difference, 0.0);
  EXPECT_FALSE(measure_rows(*engine_, 3, "fails-late", {}, source(), task.score));
}

TEST_F(TextTasksTest, CancellationKeepsWholeRows) {
  std::atomic<bool> cancel{false};
  engine_->set_cancel_flag(&cancel);
  std::vector<TargetRow> rows;
  for (const std::string& prompt : prompts()) rows.push_back({prompt, " one"});
  const auto task = target_task(*engine_, *tokenizer_, rows, "t").value();
  const std::vector<std::string> recipes{"full:store=f32"};
  const auto report = measure_rows(*engine_, task.rows, "full", recipes, source(), task.score,
                                   [&](std::size_t done, std::size_t total) {
                                     EXPECT_EQ(total, 10u);
                                     if (done == 5) cancel = true;  // third row, second recipe
                                   })
                          .value();
  EXPECT_TRUE(report.cancelled);
  EXPECT_EQ(report.rows, 2u);
  for (const RecipeOutcome& outcome : report.recipes) EXPECT_EQ(outcome.rows.size(), 2u);
}

TEST_F(TextTasksTest, RowsNameTheirPlaceWhenTheyCannotBeScored) {
  std::string longer;
  for (int i = 0; i < 60; ++i) longer += " word and another word";
  const std::vector<TargetRow> rows{{"a", " b"}, {"a", longer + longer}};
  const auto task = target_task(*engine_, *tokenizer_, rows, "my.jsonl");
  ASSERT_FALSE(task);
  EXPECT_NE(task.error().message.find("'my.jsonl' row 2"), std::string::npos);
}

}  // namespace text_tasks_test
}  // namespace kvspan::testing
