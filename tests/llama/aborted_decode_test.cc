// SPDX-License-Identifier: Apache-2.0
// A decode that ends at some node of a graph, as an abort callback or a failing device ends it. Each
// test stops at every node in turn; afterwards sequences are as before, and what follows has the
// logits of a session in which nothing was aborted.
#include <gtest/gtest.h>
#include <llama.h>

#include <span>

#include "base/fail.h"
#include "kvspan/llama.h"
#include "llama/engine.h"
#include "llama/ggml_log.h"
#include "llama/hooked_context.h"

namespace kvspan::testing {
namespace aborted_decode_test {

const std::string kModel = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");

// ggml asks it behind every node.
struct Abort {
  int at = 0;  // that time it says yes; 0: never
  int asked = 0;
  static bool poll(void* self) {
    auto& abort = *static_cast<Abort*>(self);
    return ++abort.asked == abort.at;
  }
  void set(int node) {
    at = node;
    asked = 0;
  }
};

Token token_at(std::int32_t sequence, std::int32_t position) {
  return (31 * sequence + 7 * position + 1) % 512;
}

// Tokens of several sequences, each one's last with logits.
class Batch {
 public:
  Batch() : batch_(llama_batch_init(64, 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  void add(std::int32_t sequence, std::int32_t position, std::int32_t count) {
    for (std::int32_t i = 0; i < count; ++i) {
      const std::int32_t row = batch_.n_tokens++;
      batch_.token[row] = token_at(sequence, position + i);
      batch_.pos[row] = position + i;
      batch_.n_seq_id[row] = 1;
      batch_.seq_id[row][0] = sequence;
      batch_.logits[row] = i + 1 == count;
    }
  }
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
};

class AbortedDecode : public ::testing::Test {
 protected:
  void SetUp() override {
    silence_ggml();
    model_ = llama_model_load_from_file(kModel.c_str(), llama_model_default_params());
    ASSERT_NE(model_, nullptr);
  }
  void TearDown() override { llama_model_free(model_); }

  llama_context_params params(std::uint32_t ubatch) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 512;
    params.n_batch = 64;
    params.n_ubatch = ubatch;
    params.n_seq_max = 4;
    params.n_threads = params.n_threads_batch = 1;
    params.abort_callback = Abort::poll;
    params.abort_callback_data = &abort_;
    return params;
  }
  std::vector<float> logits(llama_context* context, std::span<const std::int32_t> rows) {
    std::vector<float> all;
    for (const std::int32_t row : rows) {
      const float* of = llama_get_logits_ith(context, row);
      all.insert(all.end(), of, of + llama_vocab_n_tokens(llama_model_get_vocab(model_)));
    }
    return all;
  }

  Abort abort_;
  llama_model* model_ = nullptr;
};

// Batches of two sequences; with ubatches of 16 they are cut within both. With 30 and 11 tokens
// before, none of the recipes codes what an unaborted session would not have coded by then.
class AbortedCaches : public AbortedDecode,
                      public ::testing::WithParamInterface<std::tuple<const char*, int>> {};

TEST_P(AbortedCaches, AnyNode) {
  const auto [recipe, ubatch] = GetParam();
  auto opened = LlamaCaches::create(model_, params(static_cast<std::uint32_t>(ubatch)),
                                    {recipe, nullptr, kModel});
  ASSERT_TRUE(opened) << opened.error().message;
  LlamaCaches& caches = **opened;
  constexpr std::int32_t kFirst = 30, kSecond = 11;
  Batch before, prompt, next;
  before.add(2, 0, kFirst);
  before.add(3, 0, kSecond);
  ASSERT_TRUE(caches.decode(before.get()));
  prompt.add(0, kFirst, 20);
  prompt.add(1, kSecond, 13);
  next.add(0, kFirst + 20, 1);
  next.add(1, kSecond + 13, 1);
  const std::int32_t ends[] = {19, 32}, both[] = {0, 1};
  const auto begin = [&] {
    EXPECT_TRUE(caches.fork(2, 0));
    EXPECT_TRUE(caches.fork(3, 1));
  };
  const auto decode = [&](const Batch& batch, std::span<const std::int32_t> rows) {
    const Status status = caches.decode(batch.get());
    EXPECT_TRUE(status) << status.error().message;
    return status ? logits(caches.context(), rows) : std::vector<float>();
  };
  begin();
  abort_.set(0);
  const std::vector<float> after_prompt = decode(prompt, ends);
  const int prompt_nodes = abort_.asked;
  abort_.set(0);
  const std::vector<float> after_next = decode(next, both);
  const int next_nodes = abort_.asked;
  ASSERT_GT(prompt_nodes, next_nodes * (33 / ubatch));
  ASSERT_GT(next_nodes, 50);
  const auto aborted = [&](const Batch& batch, int node, std::int32_t first, std::int32_t second) {
    abort_.set(node);
    const Status status = caches.decode(batch.get());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kCancelled) << status.error().message;
    EXPECT_EQ(caches.tokens(0), first);
    EXPECT_EQ(caches.tokens(1), second);
    abort_.set(0);
  };
  for (int node = 1; node <= prompt_nodes; ++node) {
    SCOPED_TRACE(fmt::format("prompt, node {} of {}", node, prompt_nodes));
    begin();
    aborted(prompt, node, kFirst, kSecond);
    ASSERT_EQ(decode(prompt, ends), after_prompt);
    if (node > next_nodes) continue;
    aborted(next, node, kFirst + 20, kSecond + 13);
    ASSERT_EQ(decode(next, both), after_next);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, AbortedCaches,
                         ::testing::Combine(::testing::Values("full", "quant:recent=64",
                                                              "bands:calib=online"),
                                            ::testing::Values(16, 64)));

// The same through the engine, which takes batches apart itself.
TEST_F(AbortedDecode, AnyNodeOfTheEngine) {
  auto opened = Engine::load(kModel, {.threads = 2, .block = 64});
  ASSERT_TRUE(opened) << opened.error().message;
  Engine& engine = **opened;
  llama_set_abort_callback(engine.native(), Abort::poll, &abort_);
  std::vector<Token> first, second;
  for (std::int32_t i = 0; i < 40; ++i) {
    first.push_back(token_at(0, i));
    second.push_back(token_at(1, i));
  }
  std::unique_ptr<KvCache> a = make_cache(engine.cache_shape(), "full").value();
  std::unique_ptr<KvCache> b = make_cache(engine.cache_shape(), "full").value();
  ASSERT_TRUE(engine.prefill(*a, std::span(first).first(25)));
  const auto step = [&] {
    const BatchPart parts[] = {{a.get(), std::span(first).subspan(25), {}},
                               {b.get(), second, {}}};
    return engine.decode(parts);
  };
  const auto both = [&] {
    std::vector<float> all;
    for (int row : {0, 1}) {
      const std::span<const float> of = engine.logits(row);
      all.insert(all.end(), of.begin(), of.end());
    }
    EXPECT_TRUE(a->truncate(25));
    b->clear();
    return all;
  };
  abort_.set(0);
  ASSERT_TRUE(step());
  const std::vector<float> expected = both();
  const int nodes = abort_.asked;
  ASSERT_GT(nodes, 50);
  for (int node = 1; node <= nodes; ++node) {
    SCOPED_TRACE(fmt::format("node {} of {}", node, nodes));
    abort_.set(node);
    const Status status = step();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kCancelled) << status.error().message;
    EXPECT_EQ(engine.logit_rows(), 0);
    EXPECT_EQ(a->tokens(), 25);
    EXPECT_EQ(b->tokens(), 0);
    abort_.set(0);
    const Status after = step();
    ASSERT_TRUE(after) << after.error().message;
    ASSERT_EQ(both(), expected);
  }
}

// A prompt of three blocks: those that were read stay, and the rest is read later.
TEST_F(AbortedDecode, AnyNodeOfAPromptInBlocks) {
  auto opened = Engine::load(kModel, {.threads = 1, .block = 16});
  ASSERT_TRUE(opened) << opened.error().message;
  Engine& engine = **opened;
  llama_set_abort_callback(engine.native(), Abort::poll, &abort_);
  std::vector<Token> prompt;
  for (std::int32_t i = 0; i < 40; ++i) prompt.push_back(token_at(0, i));
  const auto logits = [&] {
    const std::span<const float> of = engine.logits(0);
    return std::vector<float>(of.begin(), of.end());
  };
  std::unique_ptr<KvCache> cache = make_cache(engine.cache_shape(), "full").value();
  ASSERT_TRUE(engine.prefill(*cache, prompt));
  const std::vector<float> expected = logits();
  const int nodes = abort_.asked, of_block = nodes / 3;
  for (int node = 1; node <= nodes; ++node) {
    SCOPED_TRACE(fmt::format("node {} of {}", node, nodes));
    cache->clear();
    abort_.set(node);
    const Status status = engine.prefill(*cache, prompt);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kCancelled) << status.error().message;
    ASSERT_EQ(cache->tokens(), (node - 1) / of_block * 16);
    abort_.set(0);
    const auto rest = std::span(prompt).subspan(static_cast<std::size_t>(cache->tokens()));
    ASSERT_TRUE(engine.prefill(*cache, rest));
    ASSERT_EQ(logits(), expected);
  }
}

}  // namespace aborted_decode_test
}  // namespace kvspan::testing
