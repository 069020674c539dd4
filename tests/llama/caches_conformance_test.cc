// SPDX-License-Identifier: Apache-2.0
// Sequences of a program on libllama (kvspan/llama.h) keep the contract of every sequence
// (tests/conformance), with a recipe of each method and a tiny model. Besides: logits depend on no
// later token of a batch, and a decode that is aborted at any node leaves no trace.
#include <gtest/gtest.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "base/fail.h"
#include "kvspan/llama.h"
#include "llama/ggml_log.h"
#include "tests/conformance/caches.h"
#include "tests/conformance/recipes.h"
#include "tests/conformance/sequence_properties.h"

namespace kvspan::conformance {
namespace caches_conformance_test {

constexpr std::int32_t kLength = 300, kSequences = 64;
const std::string kModel = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");

llama_model* model() {
  static const auto model = [] {
    silence_ggml();
    return std::unique_ptr<llama_model, void (*)(llama_model*)>(
        llama_model_load_from_file(kModel.c_str(), llama_model_default_params()), llama_model_free);
  }();
  return model.get();
}

Result<std::unique_ptr<LlamaCaches>> open(const std::string& recipe, int threads) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 512;
  params.n_batch = 256;
  params.n_ubatch = 48;
  params.n_seq_max = kSequences;
  params.n_threads = params.n_threads_batch = threads;
  // The calibration of another text: what codes are like does not matter here.
  static const std::unique_ptr<LlamaCaches> plain = [&] {
    auto made = LlamaCaches::create(model(), params, {"full", nullptr, kModel});
    EXPECT_TRUE(made) << made.error().message;
    return std::move(made).value();
  }();
  static const Calibration calibration =
      testing::SyntheticText(plain->shape(), kLength, 7).calibration();
  return LlamaCaches::create(model(), params, {recipe, &calibration, kModel});
}

// A context whose sequences are in use or free.
struct Context {
  std::unique_ptr<LlamaCaches> caches;
  std::set<std::int32_t> free;
  llama_batch batch = llama_batch_init(256, 0, 1);

  explicit Context(std::unique_ptr<LlamaCaches> from) : caches(std::move(from)) {
    for (std::int32_t i = 0; i < kSequences; ++i) free.insert(i);
  }
  Context(const Context&) = delete;
  ~Context() { llama_batch_free(batch); }
  std::int32_t take() {
    const std::int32_t number = *free.begin();
    free.erase(free.begin());
    return number;
  }
};

llama_token token_at(std::int32_t i) {
  return (i * i * 37 + i * 11 + 5) % 512;
}

class LlamaSequence final : public Sequence {
 public:
  explicit LlamaSequence(std::shared_ptr<Context> context)
      : context_(std::move(context)), number_(context_->take()) {}
  ~LlamaSequence() override {
    caches().clear(number_);
    context_->free.insert(number_);
  }
  LlamaSequence(const LlamaSequence&) = delete;

  LlamaCaches& caches() const { return *context_->caches; }
  std::int32_t tokens() const override { return caches().tokens(number_); }
  // One that holds nothing can be cut at nothing.
  std::int32_t least_tokens() const override { return std::max(1, caches().least_tokens(number_)); }
  CacheBytes bytes() const override { return caches().bytes(number_); }
  Status step(std::int32_t n, std::vector<float>& out) override {
    std::vector<llama_token> tokens;
    for (std::int32_t i = 0; i < n; ++i) tokens.push_back(token_at(this->tokens() + i));
    return read(tokens, out);
  }
  // Logits of all of them.
  Status read(std::span<const llama_token> tokens, std::vector<float>& out) {
    llama_batch& batch = context_->batch;
    batch.n_tokens = std::int32_t(tokens.size());
    for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
      batch.token[i] = tokens[std::size_t(i)];
      batch.pos[i] = this->tokens() + i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = number_;
      batch.logits[i] = 1;
    }
    KVSPAN_CHECK_OK(caches().decode(batch));
    const std::int32_t words = llama_vocab_n_tokens(llama_model_get_vocab(model()));
    for (std::int32_t i = 0; i < batch.n_tokens; ++i) {
      const float* logits = llama_get_logits_ith(caches().context(), i);
      out.insert(out.end(), logits, logits + words);
    }
    return {};
  }
  Status truncate(std::int32_t n) override { return caches().truncate(number_, n); }
  void clear() override { caches().clear(number_); }
  Result<std::unique_ptr<Sequence>> fork() const override {
    auto copy = std::make_unique<LlamaSequence>(context_);
    KVSPAN_CHECK_OK(caches().fork(number_, copy->number_));
    return std::unique_ptr<Sequence>(std::move(copy));
  }
  Result<std::vector<std::byte>> save() const override { return caches().save(number_); }
  Status load(std::span<const std::byte> bytes) { return caches().load(number_, bytes); }

 private:
  std::shared_ptr<Context> context_;
  std::int32_t number_;
};

class LlamaSource final : public Source {
 public:
  explicit LlamaSource(std::string recipe, int threads = 1) : recipe_(std::move(recipe)) {
    auto caches = open(recipe_, threads);
    if (!caches) {
      error_ = caches.error();
      return;
    }
    traits_ = traits_of((*caches)->factory());
    traits_.splits = false;  // products of other batch sizes round otherwise
    traits_.most_threads = is_long_run() ? 16 : 2;
    context_ = std::make_shared<Context>(std::move(*caches));
    positions_.resize(kLength);
    std::iota(positions_.begin(), positions_.end(), 0);
  }
  const Error* error() const { return error_ ? &*error_ : nullptr; }

  std::unique_ptr<Sequence> make() const override { return start(); }
  std::unique_ptr<LlamaSequence> start() const { return std::make_unique<LlamaSequence>(context_); }
  Result<std::unique_ptr<Sequence>> load(std::span<const std::byte> bytes) const override {
    auto made = start();
    KVSPAN_CHECK_OK(made->load(bytes));
    return std::unique_ptr<Sequence>(std::move(made));
  }
  std::unique_ptr<Source> with_threads(int threads) const override {
    return std::make_unique<LlamaSource>(recipe_, threads);
  }
  const Traits& traits() const override { return traits_; }
  std::span<const std::int32_t> positions() const override { return positions_; }
  LlamaCaches& caches() const { return *context_->caches; }
  const std::string& recipe() const { return recipe_; }

 private:
  std::string recipe_;
  std::optional<Error> error_;
  Traits traits_;
  std::shared_ptr<Context> context_;
  std::vector<std::int32_t> positions_;
};

// Tokens of a batch are answered by those before them: others after them change nothing.
void reads_no_later_tokens(const Source& source) {
  if (source.traits().reads_some) return;  // what all queries of a call chose
  const auto& llama = dynamic_cast<const LlamaSource&>(source);
  for (const std::int32_t before : {0, 75}) {
    const auto one = llama.start(), other = llama.start();
    std::vector<float> out, expected, got;
    for (LlamaSequence* each : {one.get(), other.get()}) {
      if (before > 0) {
        ASSERT_TRUE(each->step(before, out));
      }
    }
    std::vector<llama_token> tokens(40, 9);
    ASSERT_TRUE(one->read(tokens, expected));
    constexpr std::size_t kSame = 23;
    for (std::size_t i = kSame; i < tokens.size(); ++i) tokens[i] = token_at(std::int32_t(i));
    ASSERT_TRUE(other->read(tokens, got));
    const std::size_t same = expected.size() / tokens.size() * kSame;
    EXPECT_TRUE(std::equal(expected.begin(), expected.begin() + std::ptrdiff_t(same), got.begin()));
    EXPECT_FALSE(expected == got);
  }
}

// A decode that is aborted before any of its nodes leaves sequences with the tokens that they had, or
// empty if they cannot be truncated, and they continue. Rows that the batch pushed out of the recent
// window may be encoded or evicted already; if none is, the next logits are those of a sequence that
// was not aborted.
struct Stop {
  int polls = 0, at = 0;
  bool stopped = false;
};
bool stop_now(void* data) {
  auto& stop = *static_cast<Stop*>(data);
  if (stop.polls++ != stop.at) return false;
  return stop.stopped = true;
}

void survives_every_stop(const Source& source) {
  const auto& llama = dynamic_cast<const LlamaSource&>(source);
  const auto sequence = llama.start();
  std::vector<float> out;
  ASSERT_TRUE(sequence->step(70, out));
  const std::vector<std::byte> before = sequence->save().value();
  for (const std::int32_t n : {1, 60}) {  // 60: two graphs
    std::vector<float> expected;
    ASSERT_TRUE(sequence->fork().value()->step(n, expected));
    Stop stop;
    const int stride = is_long_run() ? 1 : 3;
    for (bool more = true; more && !::testing::Test::HasFailure();) {
      SCOPED_TRACE(std::to_string(n) + " tokens, stopped at poll " + std::to_string(stop.at));
      const auto trial = sequence->fork().value();
      stop.polls = 0;
      stop.stopped = false;
      llama_set_abort_callback(llama.caches().context(), stop_now, &stop);
      out.clear();
      const Status status = trial->step(n, out);
      llama_set_abort_callback(llama.caches().context(), nullptr, nullptr);
      more = stop.stopped;
      stop.at += stride;
      if (!more) {
        EXPECT_TRUE(status) << status.error().message;
        break;
      }
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, ErrorCode::kCancelled) << status.error().message;
      if (trial->tokens() == 0) continue;  // it could not be truncated
      EXPECT_EQ(trial->tokens(), 70);
      const bool untouched = trial->save().value() == before;
      if (llama.recipe() == "full") {
        EXPECT_TRUE(untouched) << "something of the batch is left";
      }
      out.clear();
      const Status again = trial->step(n, out);
      ASSERT_TRUE(again) << again.error().message;
      EXPECT_EQ(trial->tokens(), 70 + n);
      EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); }));
      if (untouched && !source.traits().observes) {
        EXPECT_TRUE(out == expected) << "it continues otherwise";
      }
    }
  }
}

struct LlamaCase {
  std::string recipe;
  NamedSequenceProperty property;
};
std::vector<LlamaCase> llama_cases() {
  std::vector<NamedSequenceProperty> properties;
  for (const NamedSequenceProperty& each : sequence_properties()) {
    // Products of other batch sizes round otherwise: no text splits alike. Threads that wait for each
    // other at every node take long where others have the cores.
    if (each.check == splits_alike || (each.check == threads_agree && !is_long_run())) continue;
    properties.push_back(each);
  }
  properties.push_back({"ReadsNoLaterTokens", reads_no_later_tokens});
  properties.push_back({"SurvivesEveryStop", survives_every_stop});
  std::vector<LlamaCase> cases;
  for (const TableRecipe& recipe : recipes_of_stores()) {
    for (const NamedSequenceProperty& property : properties) cases.push_back({recipe.text, property});
  }
  if (!is_long_run()) cases.push_back({"full", {"ThreadsAgree", threads_agree}});
  return cases;
}
void PrintTo(const LlamaCase& one, std::ostream* to) {
  *to << one.recipe;
}

class LlamaSequences : public ::testing::TestWithParam<LlamaCase> {};
TEST_P(LlamaSequences, Conform) {
  const LlamaSource source(GetParam().recipe);
  if (const Error* error = source.error()) {
    ASSERT_EQ(error->code, ErrorCode::kInvalidArgument) << error->message;
    GTEST_SKIP() << error->message;
  }
  GetParam().property.check(source);
}
INSTANTIATE_TEST_SUITE_P(Of, LlamaSequences, ::testing::ValuesIn(llama_cases()),
                         [](const ::testing::TestParamInfo<LlamaCase>& one) {
                           return one.param.property.name + ("_" + name_of_recipe(one.param.recipe));
                         });

}  // namespace caches_conformance_test
}  // namespace kvspan::conformance
