// SPDX-License-Identifier: Apache-2.0
// The two ways in which attention is answered: replaced nodes, and results that are written over, as
// where nodes are computed on another device.
#include "llama/hooked_context.h"

#include <gtest/gtest.h>

#include <cmath>

#include "llama/ggml_log.h"

namespace kvspan::testing {
namespace hooked_context_test {

const std::string kModel = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");

class HookedContextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    silence_ggml();
    model_ = llama_model_load_from_file(kModel.c_str(), llama_model_default_params());
    ASSERT_NE(model_, nullptr);
  }
  void TearDown() override { llama_model_free(model_); }

  // Logits of the last token of a prompt that is read in batches of 48, each of two ubatches.
  std::vector<float> logits(bool overwrite, const char* recipe) {
    llama_context_params params = llama_context_default_params();
    params.n_batch = 48;
    params.n_ubatch = 32;
    params.n_threads = params.n_threads_batch = 1;
    auto context = HookedContext::create(model_, params, {kModel, overwrite});
    EXPECT_TRUE(context) << context.error().message;
    auto cache = make_cache((*context)->shape(), recipe);
    EXPECT_TRUE(cache);
    llama_batch batch = llama_batch_init(48, 0, 1);
    std::vector<BatchRow> rows;
    for (std::int32_t done = 0; done < 96; done += 48) {
      rows.clear();
      for (std::int32_t i = 0; i < 48; ++i) {
        batch.token[i] = (7 * (done + i) + 1) % 512;
        batch.pos[i] = done + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = i == 47;
        rows.push_back({0, done + i, cache->get()});
      }
      batch.n_tokens = 48;
      const Status status = (*context)->decode(batch, rows);
      EXPECT_TRUE(status) << status.error().message;
    }
    llama_batch_free(batch);
    EXPECT_EQ((*cache)->tokens(), 96);
    const float* found = llama_get_logits_ith((*context)->get(), 47);
    return {found, found + llama_vocab_n_tokens(llama_model_get_vocab(model_))};
  }

  llama_model* model_ = nullptr;
};

// Rows that are written over come by way of libllama's f16 memory: they are those that a cache of
// f16 holds anyway, bit for bit, and not those of one of f32.
TEST_F(HookedContextTest, WritingOverResultsIsTheSameButForF16Rows) {
  EXPECT_EQ(logits(true, "full"), logits(false, "full"));
  EXPECT_NE(logits(true, "full:store=f32"), logits(false, "full:store=f32"));
}

TEST_F(HookedContextTest, TheShapeIsReadOffTheGraph) {
  llama_context_params params = llama_context_default_params();
  auto context = HookedContext::create(model_, params, {kModel});
  ASSERT_TRUE(context) << context.error().message;
  const CacheShape& shape = (*context)->shape();
  ASSERT_EQ(shape.layers.size(), 5u);  // data/models/README.md
  for (const LayerShape& layer : shape.layers) {
    EXPECT_EQ(layer.query_heads, 8);
    EXPECT_EQ(layer.kv_heads, 4);
    EXPECT_EQ(layer.key_dim, 8);
    EXPECT_EQ(layer.value_dim, 8);
    EXPECT_FLOAT_EQ(layer.logit_scale, 1.0f / std::sqrt(8.0f));
    EXPECT_EQ(layer.rope.rotated_dims, 8);
    EXPECT_EQ(layer.rope.pairs, Rope::Pairs::kNeighbours);
    ASSERT_EQ(layer.rope.angles.size(), 4u);
    for (int i = 0; i < 4; ++i) {
      EXPECT_NEAR(layer.rope.angles[static_cast<std::size_t>(i)], std::pow(1e4, -i / 4.0), 1e-9);
    }
    EXPECT_EQ(layer.window, 0);
  }
}

TEST_F(HookedContextTest, AContextWhoseCallbackIsTakenIsRefused) {
  llama_context_params params = llama_context_default_params();
  params.cb_eval = [](ggml_tensor*, bool, void*) { return false; };
  const auto context = HookedContext::create(model_, params, {kModel});
  ASSERT_FALSE(context);
  EXPECT_EQ(context.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace hooked_context_test
}  // namespace kvspan::testing
