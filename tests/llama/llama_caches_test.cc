// SPDX-License-Identifier: Apache-2.0
// kvspan/llama.h as a program on stock libllama uses it: sequences that grow in batches, fork, go
// back and are cleared give the logits of sequences read anew.
#include "kvspan/llama.h"

#include <gtest/gtest.h>
#include <llama.h>

#include <cmath>
#include <map>

#include "base/random.h"
#include "llama/ggml_log.h"

namespace kvspan::testing {
namespace llama_caches_test {

const std::string kModel = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");
// Matrix products of other batch sizes, and of other engines, sum f32 in another order. Of a thousand
// cases the worst logit was 9e-6 off.
constexpr double kRounding = 1e-4;

class LlamaCachesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    silence_ggml();
    model_ = llama_model_load_from_file(kModel.c_str(), llama_model_default_params());
    ASSERT_NE(model_, nullptr);
    vocabulary_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
  }
  void TearDown() override { llama_model_free(model_); }

  std::unique_ptr<LlamaCaches> open(const std::string& recipe, std::uint32_t ubatch = 64,
                                    std::uint32_t sequences = 4) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 512;
    params.n_batch = 128;
    params.n_ubatch = ubatch;
    params.n_seq_max = sequences;
    params.n_threads = params.n_threads_batch = 1;
    auto caches = LlamaCaches::create(model_, params, {recipe, nullptr, kModel});
    EXPECT_TRUE(caches) << caches.error().message;
    return caches ? std::move(*caches) : nullptr;
  }
  std::vector<float> logits(const LlamaCaches& caches, std::int32_t row) {
    const float* first = llama_get_logits_ith(caches.context(), row);
    return {first, first + vocabulary_};
  }

  llama_model* model_ = nullptr;
  std::int32_t vocabulary_ = 0;
};

// Tokens of several sequences, each one's last token with logits.
class Batch {
 public:
  Batch() : batch_(llama_batch_init(128, 0, 1)) {}
  ~Batch() { llama_batch_free(batch_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  void add(std::int32_t sequence, std::int32_t position, std::span<const llama_token> tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int32_t row = batch_.n_tokens++;
      batch_.token[row] = tokens[i];
      batch_.pos[row] = position + static_cast<std::int32_t>(i);
      batch_.n_seq_id[row] = 1;
      batch_.seq_id[row][0] = sequence;
      batch_.logits[row] = i + 1 == tokens.size();
    }
  }
  llama_batch& get() { return batch_; }

 private:
  llama_batch batch_;
};

void expect_near(const std::vector<float>& a, const std::vector<float>& b, double most) {
  ASSERT_EQ(a.size(), b.size());
  double worst = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - b[i]));
  EXPECT_LE(worst, most);
}

TEST_F(LlamaCachesTest, SequencesThatForkGoBackAndBatchAreAsReadAnew) {
  constexpr int kCases = 1000, kSequences = 4;
  const auto caches = open("full:store=f32"), anew = open("full:store=f32", 128);
  ASSERT_TRUE(caches && anew);
  Random random(7);
  const auto below = [&](std::size_t n) { return static_cast<std::int32_t>(random.below(n)); };
  std::map<std::int32_t, std::vector<llama_token>> held;
  for (int done = 0; done < kCases; ++done) {
    SCOPED_TRACE("case " + std::to_string(done));
    const std::int32_t sequence = below(kSequences);
    std::vector<llama_token>& tokens = held[sequence];
    switch (below(6)) {
      case 0: {
        const std::int32_t to = below(kSequences);
        ASSERT_TRUE(caches->fork(sequence, to));
        held[to] = std::vector<llama_token>(tokens);
        continue;
      }
      case 1: {
        const auto n = below(tokens.size() + 1);
        ASSERT_TRUE(caches->truncate(sequence, n));
        tokens.resize(static_cast<std::size_t>(n));
        continue;
      }
      case 2:
        if (below(8) == 0) caches->clear(sequence), tokens.clear();
        continue;
      default:
        break;
    }
    // Some sequences go on, in any order, by up to 24 tokens each.
    Batch batch;
    std::vector<std::int32_t> order{0, 1, 2, 3}, last_row(kSequences, -1);
    for (std::size_t i = 4; i-- > 1;) std::swap(order[i], order[random.below(i + 1)]);
    for (const std::int32_t s : order) {
      if (s != sequence && below(2) == 0) continue;
      std::vector<llama_token>& of = held[s];
      if (of.size() > 120) caches->clear(s), of.clear();
      const auto count = static_cast<std::size_t>(1 + below(below(3) == 0 ? 24 : 1));
      for (std::size_t i = 0; i < count; ++i)
        of.push_back(below(static_cast<std::size_t>(vocabulary_)));
      batch.add(s, caches->tokens(s), std::span(of).last(count));
      last_row[static_cast<std::size_t>(s)] = batch.get().n_tokens - 1;
    }
    const Status status = caches->decode(batch.get());
    ASSERT_TRUE(status) << status.error().message;
    ASSERT_EQ(caches->tokens(sequence), static_cast<std::int32_t>(tokens.size()));
    const auto got = logits(*caches, last_row[static_cast<std::size_t>(sequence)]);
    anew->clear();
    Batch whole;
    whole.add(0, 0, tokens.size() > 128 ? std::span(tokens).first(128) : std::span(tokens));
    ASSERT_TRUE(anew->decode(whole.get()));
    if (tokens.size() > 128) {
      Batch rest;
      rest.add(0, 128, std::span(tokens).subspan(128));
      ASSERT_TRUE(anew->decode(rest.get()));
      expect_near(got, logits(*anew, rest.get().n_tokens - 1), kRounding);
    } else {
      expect_near(got, logits(*anew, whole.get().n_tokens - 1), kRounding);
    }
    if (HasFailure()) return;
  }
}

TEST_F(LlamaCachesTest, LogitsAreThoseOfStockLlamaWithAnF32Cache) {
  std::vector<llama_token> tokens;
  for (int i = 0; i < 100; ++i) tokens.push_back((i * 37 + 5) % vocabulary_);
  const auto caches = open("full:store=f32");
  ASSERT_TRUE(caches);
  Batch batch;
  batch.add(0, 0, tokens);
  ASSERT_TRUE(caches->decode(batch.get()));
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 256;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* stock = llama_init_from_model(model_, params);
  ASSERT_EQ(llama_decode(stock, batch.get()), 0);
  const float* expected = llama_get_logits_ith(stock, 99);
  expect_near(logits(*caches, 99), {expected, expected + vocabulary_}, kRounding);
  llama_free(stock);
}

TEST_F(LlamaCachesTest, ASavedSequenceGoesOnBitForBit) {
  std::vector<llama_token> tokens(60, 7);
  for (const char* recipe : {"full", "quant:bits=4", "bands:calib=online,learn=48"}) {
    const auto caches = open(recipe);
    ASSERT_TRUE(caches);
    Batch batch;
    batch.add(1, 0, tokens);
    ASSERT_TRUE(caches->decode(batch.get()));
    const auto bytes = caches->save(1);
    ASSERT_TRUE(bytes) << bytes.error().message;
    const Status loaded = caches->load(3, *bytes);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(caches->tokens(3), 60);
    Batch more;
    more.add(1, 60, std::span(tokens).first(5));
    more.add(3, 60, std::span(tokens).first(5));
    ASSERT_TRUE(caches->decode(more.get()));
    EXPECT_EQ(logits(*caches, 4), logits(*caches, 9)) << recipe;
    EXPECT_FALSE(caches->load(3, std::span(*bytes).first(bytes->size() / 2)));
    EXPECT_EQ(caches->tokens(3), 65) << "a damaged one changes nothing";
  }
}

TEST_F(LlamaCachesTest, WrongBatchesAreRefusedByName) {
  const auto caches = open("full");
  ASSERT_TRUE(caches);
  const std::vector<llama_token> tokens{1, 2, 3};
  const auto refused = [&](Batch& batch, const std::string& why) {
    const Status status = caches->decode(batch.get());
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find(why), std::string::npos) << status.error().message;
    EXPECT_EQ(caches->tokens(0), 0);
  };
  Batch none, late, foreign, apart, two;
  refused(none, "no tokens");
  late.add(0, 5, tokens);
  refused(late, "position 5 of sequence 0, which goes on at 0");
  foreign.add(9, 0, tokens);
  refused(foreign, "sequence 9 is outside 0..3");
  apart.add(0, 0, tokens);
  apart.add(1, 0, tokens);
  apart.add(0, 3, tokens);
  refused(apart, "sequence 0 in several places");
  two.add(0, 0, tokens);
  two.get().n_seq_id[1] = 2;
  refused(two, "belongs to 2 sequences");
}

TEST_F(LlamaCachesTest, AnAbortedBatchLeavesSequencesAsTheyWere) {
  const auto caches = open("full");
  ASSERT_TRUE(caches);
  const std::vector<llama_token> tokens{1, 2, 3, 4, 5, 6};
  Batch first, second;
  first.add(0, 0, tokens);
  ASSERT_TRUE(caches->decode(first.get()));
  bool stop = true;
  llama_set_abort_callback(
      caches->context(), [](void* flag) { return *static_cast<bool*>(flag); }, &stop);
  second.add(0, 6, tokens);
  const Status status = caches->decode(second.get());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(caches->tokens(0), 6);
  stop = false;
  EXPECT_TRUE(caches->decode(second.get()));
  EXPECT_EQ(caches->tokens(0), 12);
}

// What is refused leaves every sequence as it was.
TEST_F(LlamaCachesTest, RefusedCallsChangeNothing) {
  const auto caches = open("full"), others = open("full:store=f32");
  ASSERT_TRUE(caches && others);
  const std::vector<llama_token> tokens(120, 7);
  for (std::int32_t at = 0; at < 480; at += 120) {
    Batch batch;
    batch.add(0, at, tokens);
    ASSERT_TRUE(caches->decode(batch.get()));
    if (at > 0) continue;
    ASSERT_TRUE(others->decode(batch.get()));
  }
  const std::vector<std::byte> before = caches->save(0).value();
  const auto refused = [&](const Status& status, ErrorCode code, const std::string& why) {
    ASSERT_FALSE(status) << why;
    EXPECT_EQ(status.error().code, code);
    EXPECT_NE(status.error().message.find(why), std::string::npos) << status.error().message;
    EXPECT_EQ(caches->tokens(0), 480);
    EXPECT_TRUE(caches->save(0).value() == before) << why;
  };
  Batch beyond;
  beyond.add(1, 0, std::span(tokens).first(5));
  beyond.add(0, 480, std::span(tokens).first(33));
  refused(caches->decode(beyond.get()), ErrorCode::kOutOfBudget, "513 tokens exceed the context");
  EXPECT_EQ(caches->tokens(1), 0);
  float embedding[64] = {};
  Batch embeddings;
  embeddings.add(0, 480, std::span(tokens).first(1));
  llama_batch of_embeddings = embeddings.get();
  of_embeddings.embd = embedding;
  refused(caches->decode(of_embeddings), ErrorCode::kUnsupported, "embeddings");
  refused(caches->fork(0, 4), ErrorCode::kInvalidArgument, "sequence 4 is outside 0..3");
  refused(caches->load(-1, before), ErrorCode::kInvalidArgument, "sequence -1 is outside 0..3");
  refused(caches->load(0, std::span(before).first(before.size() - 9)), ErrorCode::kCorruptData, "");
  refused(caches->load(0, others->save(0).value()), ErrorCode::kCorruptData, "");
  refused(caches->take(0, others->factory().make()), ErrorCode::kInvalidArgument,
          "full:store=f32 for a context with full");
  // What another factory of the same recipe made is one of its own.
  auto taken = caches->factory().load(before);
  ASSERT_TRUE(taken);
  ASSERT_TRUE(caches->take(2, *std::move(taken)));
  EXPECT_TRUE(caches->save(2).value() == before);
}

TEST_F(LlamaCachesTest, TokensAndBytesAreThoseOfTheSequences) {
  const auto caches = open("full");
  ASSERT_TRUE(caches);
  const auto total = [&] {
    std::size_t sum = 0;
    for (const std::size_t bytes : caches->layer_bytes()) sum += bytes;
    EXPECT_EQ(caches->bytes().total, sum);
    EXPECT_EQ(caches->bytes(0).total + caches->bytes(1).total + caches->bytes(2).total, sum);
    return sum;
  };
  EXPECT_EQ(total(), 0u);
  EXPECT_EQ(caches->tokens(3), 0);
  EXPECT_EQ(caches->least_tokens(3), 0);
  Batch batch;
  batch.add(0, 0, std::vector<llama_token>(30, 5));
  batch.add(1, 0, std::vector<llama_token>(9, 6));
  ASSERT_TRUE(caches->decode(batch.get()));
  EXPECT_GT(total(), 0u);
  EXPECT_EQ(caches->least_tokens(0), 1);
  ASSERT_TRUE(caches->truncate(0, 31));  // nothing to forget
  EXPECT_EQ(caches->tokens(0), 30);
  ASSERT_TRUE(caches->truncate(0, 4));
  EXPECT_EQ(caches->tokens(0), 4);
  ASSERT_TRUE(caches->fork(1, 1));
  ASSERT_TRUE(caches->fork(1, 2));
  EXPECT_EQ(caches->tokens(2), 9);
  ASSERT_TRUE(caches->fork(3, 2));  // of a sequence without tokens
  EXPECT_EQ(caches->tokens(2), 0);
  ASSERT_TRUE(caches->truncate(0, 0));
  EXPECT_EQ(caches->tokens(0), 0);
  EXPECT_EQ(caches->tokens(1), 9);
  caches->clear(1);
  EXPECT_EQ(total(), 0u);
}

}  // namespace llama_caches_test
}  // namespace kvspan::testing
