// SPDX-License-Identifier: Apache-2.0
// The ways in which attention is answered: replaced nodes, results that are written over, as where
// nodes are computed on a device and caches are not there, and nodes left to a device.
#include "llama/hooked_context.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/fail.h"
#include "llama/ggml_log.h"

namespace kvspan::testing {
namespace hooked_context_test {

const std::string kModel = std::string(KVSPAN_SOURCE_DIR "/data/models/stories260K.gguf");

// In place of a device: memory and caches are the host's.
class HostAnswer : public DeviceAnswer {
 public:
  bool reads(const ggml_tensor*) const override { return true; }
  Result<CacheFactory> place(const CacheFactory& caches, std::int32_t, std::int32_t) override {
    return caches;
  }
  bool holds(const Ubatch&) const override { return holding; }
  void announce() override { ++announced; }
  Status answer(int layer, const Ubatch& ubatch, const NodeRows& rows) override {
    ++answered;
    TeamState state;
    Team team(state, 0, 1);
    const auto scratch = make_attention_scratch();
    for (const bool storing : {true, false}) {
      for (const SequenceRows& of : ubatch.sequences) {
        const auto part = [&](auto view) {
          view.data += static_cast<std::size_t>(of.begin) * view.strides[0];
          view.shape[0] = static_cast<std::size_t>(of.end - of.begin);
          return view;
        };
        const auto positions = std::span(ubatch.positions)
                                   .subspan(static_cast<std::size_t>(of.begin),
                                            static_cast<std::size_t>(of.end - of.begin));
        if (storing) {
          KVSPAN_CHECK_OK(
              of.cache->append(layer, {part(rows.keys), part(rows.values), positions}, team));
          continue;
        }
        KVSPAN_CHECK_OK(of.cache->attend(layer, {part(rows.queries), positions}, part(rows.out),
                                         *scratch, team));
        KVSPAN_CHECK_OK(of.cache->settle(layer, team));
      }
    }
    return {};
  }

  bool holding = true;
  int announced = 0, answered = 0;
};

// One that records steps of one token for each sequence, as far as ggml can tell; the steps named
// in `replayed` are not computed at all.
class RecordingAnswer final : public HostAnswer {
 public:
  void graph_is_new() override { ++graphs; }
  bool may_record(const Ubatch& ubatch) override {
    return ubatch.positions.size() == ubatch.sequences.size();
  }
  Result<Step> begin_step(const Ubatch&, std::size_t nodes) override {
    EXPECT_EQ(nodes, 5u);
    if (replayed) return Step::kReplayed;
    recording_ = true;
    ++recorded;
    return Step::kRecorded;
  }
  bool recording() const override { return recording_; }
  Status queries_are_there(int layer, const NodeRows& rows) override {
    early_[layer] = numbers_of(rows.queries);
    return {};
  }
  Status answer(int layer, const Ubatch& ubatch, const NodeRows& rows) override {
    if (recording_) {
      EXPECT_EQ(early_.at(layer), numbers_of(rows.queries)) << "layer " << layer;
      early_.erase(layer);
    }
    return HostAnswer::answer(layer, ubatch, rows);
  }
  Status end_step() override {
    EXPECT_TRUE(early_.empty());
    recording_ = false;
    return {};
  }

  int graphs = 0, recorded = 0;
  bool replayed = false;

 private:
  static std::vector<float> numbers_of(const TensorView<const float, 3>& rows) {
    std::vector<float> numbers;
    for (std::size_t i = 0; i < rows.shape[0]; ++i) {
      for (std::size_t h = 0; h < rows.shape[1]; ++h) {
        numbers.insert(numbers.end(), rows.row(i, h), rows.row(i, h) + rows.shape[2]);
      }
    }
    return numbers;
  }
  bool recording_ = false;
  std::map<int, std::vector<float>> early_;  // by layer
};

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

// Three sequences token by token, in graphs that libllama uses again, with a cache that moves from
// the device to the host and back, and prompts before.
TEST_F(HookedContextTest, NodesLeftToADeviceAreTheSameBitForBit) {
  constexpr std::int32_t kSequences = 3, kPrompt = 9, kSteps = 8;
  llama_context_params params = llama_context_default_params();
  params.n_batch = params.n_ubatch = 32;
  params.n_seq_max = kSequences;
  params.n_threads = params.n_threads_batch = 1;
  const auto run = [&](std::shared_ptr<HostAnswer> device, bool moves) {
    auto context = HookedContext::create(model_, params, {kModel, device != nullptr, device});
    EXPECT_TRUE(context) << context.error().message;
    std::vector<std::unique_ptr<KvCache>> caches;
    for (int s = 0; s < kSequences; ++s) {
      caches.push_back(std::move(make_cache((*context)->shape(), "full")).value());
    }
    llama_batch batch = llama_batch_init(32, 0, 1);
    std::vector<float> all;
    for (std::int32_t step = 0; step < kSteps; ++step) {
      if (device && moves) device->holding = step / 2 % 2 == 0;
      const std::int32_t count = step == 0 ? kPrompt : 1;
      const std::int32_t first = step == 0 ? 0 : kPrompt + step - 1;
      std::vector<BatchRow> rows;
      batch.n_tokens = 0;
      for (std::int32_t s = 0; s < kSequences; ++s) {
        for (std::int32_t i = 0; i < count; ++i) {
          const std::int32_t at = batch.n_tokens++;
          batch.token[at] = (31 * s + 7 * (first + i) + 1) % 512;
          batch.pos[at] = first + i;
          batch.n_seq_id[at] = 1;
          batch.seq_id[at][0] = s;
          batch.logits[at] = i + 1 == count;
          rows.push_back({s, first + i, caches[static_cast<std::size_t>(s)].get()});
        }
      }
      const Status status = (*context)->decode(batch, rows);
      EXPECT_TRUE(status) << status.error().message;
      for (std::int32_t s = 0; s < kSequences; ++s) {
        const float* found = llama_get_logits_ith((*context)->get(), (s + 1) * count - 1);
        all.insert(all.end(), found,
                   found + llama_vocab_n_tokens(llama_model_get_vocab(model_)));
      }
    }
    llama_batch_free(batch);
    return all;
  };
  const std::vector<float> plain = run(nullptr, false);
  const auto device = std::make_shared<HostAnswer>();
  EXPECT_EQ(run(device, false), plain);
  EXPECT_EQ(device->answered, 5 * kSteps);  // layers
  EXPECT_EQ(device->announced, device->answered);
  const auto moving = std::make_shared<HostAnswer>();
  EXPECT_EQ(run(moving, true), plain);
  EXPECT_EQ(moving->answered, 5 * kSteps / 2);
  // Recorded from the second step of a graph on: queries are whole before their keys and values
  // are.
  const auto recorder = std::make_shared<RecordingAnswer>();
  EXPECT_EQ(run(recorder, false), plain);
  EXPECT_EQ(recorder->answered, 5 * kSteps);
  EXPECT_EQ(recorder->graphs, 2);
  EXPECT_EQ(recorder->recorded, kSteps - 2);
  // Nothing of a replayed step is computed.
  const auto replayer = std::make_shared<RecordingAnswer>();
  replayer->replayed = true;
  run(replayer, false);
  EXPECT_EQ(replayer->answered, 5 * 2);
}

// Graphs of pieces, for results that are written over and nodes that are left, may end in any of
// them.
TEST_F(HookedContextTest, AbortedPiecesLeaveNothingBehind) {
  struct Abort {
    int at = 0, asked = 0;
  } abort;
  llama_context_params params = llama_context_default_params();
  params.n_batch = 40;
  params.n_ubatch = 32;
  params.n_threads = params.n_threads_batch = 1;
  params.abort_callback = [](void* data) {
    auto& of = *static_cast<Abort*>(data);
    return ++of.asked == of.at;
  };
  params.abort_callback_data = &abort;
  for (const auto& device : {std::shared_ptr<HostAnswer>(), std::make_shared<HostAnswer>()}) {
    auto context = HookedContext::create(model_, params, {kModel, true, device});
    ASSERT_TRUE(context) << context.error().message;
    auto cache = make_cache((*context)->shape(), "full").value();
    llama_batch batch = llama_batch_init(40, 0, 1);
    std::vector<BatchRow> rows;
    for (std::int32_t i = 0; i < 40; ++i) {
      batch.token[i] = (7 * i + 1) % 512;
      batch.pos[i] = i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = i == 39;
      rows.push_back({0, i, cache.get()});
    }
    batch.n_tokens = 40;
    const auto decode = [&](int at) {
      abort = {at, 0};
      return (*context)->decode(batch, rows);
    };
    const auto logits = [&] {
      const float* found = llama_get_logits_ith((*context)->get(), 39);
      return std::vector<float>(found, found + 512);
    };
    ASSERT_TRUE(decode(0));
    const std::vector<float> expected = logits();
    const int nodes = abort.asked;
    for (int node = 1; node <= nodes; ++node) {
      SCOPED_TRACE(fmt::format("node {} of {}, {}", node, nodes, device ? "left" : "written over"));
      cache->clear();
      const Status status = decode(node);
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, ErrorCode::kCancelled) << status.error().message;
      cache->clear();
      const Status after = decode(0);
      ASSERT_TRUE(after) << after.error().message;
      ASSERT_EQ(logits(), expected);
    }
    llama_batch_free(batch);
  }
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
