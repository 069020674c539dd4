// SPDX-License-Identifier: Apache-2.0
// A sequence that comes from a prefix store goes on bit for bit as the one that was put there.
#include <gtest/gtest.h>
#include <llama.h>

#include "base/random.h"
#include "kvspan/llama.h"
#include "llama/ggml_log.h"
#include "store/memory_blobs.h"
#include "store/prefix_store.h"

namespace kvspan::testing {
namespace stored_prefix_test {

const std::string kStories = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");
constexpr std::int32_t kBatch = 64;

class StoredPrefixTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    silence_ggml();
    model_ = llama_model_load_from_file(kStories.c_str(), llama_model_default_params());
    ASSERT_NE(model_, nullptr);
    vocabulary_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
  }
  void TearDown() override { llama_model_free(model_); }

  std::unique_ptr<LlamaCaches> open() {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 1024;
    params.n_batch = params.n_ubatch = kBatch;
    params.n_threads = params.n_threads_batch = 1;
    auto caches = LlamaCaches::create(model_, params, {GetParam(), nullptr, kStories});
    EXPECT_TRUE(caches) << caches.error().message;
    return caches ? std::move(*caches) : nullptr;
  }
  // Reads on from where the sequence is, always in batches that begin at multiples of 64, so that matrix
  // products are the same ones; the logits of the last token.
  std::vector<float> read(LlamaCaches& caches, std::span<const llama_token> tokens) {
    for (std::int32_t at = caches.tokens(0); at < static_cast<std::int32_t>(tokens.size());) {
      const std::int32_t end =
          std::min<std::int32_t>(static_cast<std::int32_t>(tokens.size()), at / kBatch * kBatch + kBatch);
      std::vector<llama_token> part(tokens.begin() + at, tokens.begin() + end);
      const Status status =
          caches.decode(llama_batch_get_one(part.data(), static_cast<std::int32_t>(part.size())));
      EXPECT_TRUE(status) << status.error().message;
      at = end;
    }
    const float* logits = llama_get_logits_ith(caches.context(), -1);
    return {logits, logits + vocabulary_};
  }
  std::vector<llama_token> random_tokens(Random& random, std::size_t n) {
    std::vector<llama_token> tokens(n);
    for (llama_token& token : tokens) {
      token = static_cast<llama_token>(3 + random.below(static_cast<std::size_t>(vocabulary_ - 3)));
    }
    return tokens;
  }

  llama_model* model_ = nullptr;
  std::int32_t vocabulary_ = 0;
};

TEST_P(StoredPrefixTest, GoesOnBitForBit) {
  PrefixStore store(std::make_unique<MemoryBlobs>(std::uint64_t{1} << 28), {"stories", GetParam(), "", ""});
  Random random(17);
  const std::vector<llama_token> text = random_tokens(random, 512);
  const auto first = open(), second = open();
  ASSERT_TRUE(first && second);
  read(*first, text);
  const auto saved = first->save_with_runs(0);
  ASSERT_TRUE(saved) << saved.error().message;
  EXPECT_EQ(saved->bytes, first->save(0).value());
  EXPECT_FALSE(saved->runs.empty());
  ASSERT_TRUE(store.put(text, first->least_tokens(0), *saved));
  // Another program asks something else about the same text.
  std::vector<llama_token> prompt = text;
  const std::vector<llama_token> question = random_tokens(random, 40);
  prompt.insert(prompt.end(), question.begin(), question.end());
  const auto found = store.longest(prompt);
  ASSERT_TRUE(found);
  ASSERT_EQ(found->tokens, 512);
  EXPECT_EQ(found->bytes, saved->bytes);
  ASSERT_TRUE(second->load(0, found->bytes));
  ASSERT_TRUE(second->truncate(0, found->tokens));
  EXPECT_EQ(read(*second, prompt), read(*first, prompt));
  for (int i = 0; i < 20; ++i) {
    const llama_token next[] = {random_tokens(random, 1).front()};
    prompt.push_back(next[0]);
    ASSERT_EQ(read(*second, prompt), read(*first, prompt)) << i;
  }
  EXPECT_EQ(second->save(0).value(), first->save(0).value());
}

// A shorter beginning: as the sequence that was put goes on when it is truncated itself; where rows are
// kept as they came (full), also as reading the prompt anew.
TEST_P(StoredPrefixTest, ABeginningIsAsTruncatedAndWithFullAsReadAnew) {
  PrefixStore store(std::make_unique<MemoryBlobs>(std::uint64_t{1} << 28), {"stories", GetParam(), "", ""});
  Random random(18);
  const std::vector<llama_token> text = random_tokens(random, 600);
  const auto first = open(), second = open(), anew = open();
  ASSERT_TRUE(first && second && anew);
  read(*first, text);
  ASSERT_TRUE(store.put(text, first->least_tokens(0), first->save_with_runs(0).value()));
  for (const std::size_t shared : {256u, 300u, 511u, 512u, 600u}) {
    std::vector<llama_token> prompt(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(shared));
    const std::vector<llama_token> question = random_tokens(random, 30);
    prompt.insert(prompt.end(), question.begin(), question.end());
    const auto found = store.longest(prompt);
    ASSERT_TRUE(found) << shared;
    ASSERT_EQ(found->tokens, static_cast<std::int32_t>(shared) / 256 * 256);
    ASSERT_TRUE(second->load(0, found->bytes));
    ASSERT_TRUE(second->truncate(0, found->tokens));
    const auto loaded = read(*second, prompt);
    ASSERT_TRUE(first->load(0, found->bytes));
    ASSERT_TRUE(first->truncate(0, found->tokens));
    EXPECT_EQ(loaded, read(*first, prompt)) << shared;
    if (GetParam() != "full") continue;
    anew->clear(0);
    EXPECT_EQ(loaded, read(*anew, prompt)) << shared;
  }
}

// Two prompts with the same first 512 tokens, read in the same batches, have these tokens' pieces in common.
TEST_P(StoredPrefixTest, KeepsSharedTokensOnce) {
  PrefixStore store(std::make_unique<MemoryBlobs>(std::uint64_t{1} << 28), {"stories", GetParam(), "", ""});
  Random random(19);
  const std::vector<llama_token> text = random_tokens(random, 768);
  const auto caches = open();
  ASSERT_TRUE(caches);
  std::uint64_t before = 0, first_bytes = 0;
  for (int i = 0; i < 2; ++i) {
    std::vector<llama_token> prompt = text;
    const std::vector<llama_token> question = random_tokens(random, 256);
    prompt.insert(prompt.end(), question.begin(), question.end());
    caches->clear(0);
    read(*caches, prompt);
    ASSERT_TRUE(store.put(prompt, 1, caches->save_with_runs(0).value()));
    const std::uint64_t bytes = store.statistics().saved_bytes - before;
    before += bytes;
    if (i == 0) first_bytes = bytes;
    // Two of the four blocks at least are shared: the last but one may hold rows that are still moving.
    if (i == 1) {
      EXPECT_LT(bytes, first_bytes * 3 / 4);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, StoredPrefixTest,
                         ::testing::Values("full", "quant:bits=4", "bands:calib=online,learn=128"),
                         [](const auto& tested) {
                           return std::string(tested.param.substr(0, tested.param.find(':')));
                         });

}  // namespace stored_prefix_test
}  // namespace kvspan::testing
