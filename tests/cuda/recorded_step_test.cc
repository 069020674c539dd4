// SPDX-License-Identifier: Apache-2.0
// Steps that are replayed as a graph answer, and leave the cache, as steps that are called one by
// one, bit for bit: past ends of pages, rows that become codes, attention that is cut otherwise,
// and other sequences.
#include "cuda/recorded_step.h"

#include <array>

#include "cuda/graph_branch.h"
#include "tests/cuda/device_run.h"

namespace kvspan::testing {
namespace {

#define KVSPAN_CUDA_OK(call) ASSERT_EQ(call, cudaSuccess)

void expect_ok(const Status& status) {
  EXPECT_TRUE(status) << (status ? "" : status.error().message);
}

// Numbers of one layer and step, where a graph reads and writes them.
struct LayerMemory {
  DeviceArray<float> keys, values, queries, out;
  LayerMemory(const LayerShape& l, std::size_t batch)
      : keys(batch * std::size_t(l.kv_heads * l.key_dim)),
        values(batch * std::size_t(l.kv_heads * l.value_dim)),
        queries(batch * std::size_t(l.query_heads * l.key_dim)),
        out(batch * std::size_t(l.query_heads * l.value_dim)) {}
};

class Replays {
 public:
  explicit Replays(DeviceCache& cache) : cache_(cache), step_(cache) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(branch_.open(), cudaSuccess);
  }
  ~Replays() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    cudaStreamDestroy(stream_);
  }

  // texts[i], at firsts[i], gives the row of sequence i. All layers' answers one after the other.
  std::vector<float> step(std::span<const DeviceStep> steps,
                          std::span<const SyntheticText* const> texts,
                          std::span<const std::int32_t> firsts) {
    const std::vector<LayerShape>& layers = cache_.shape().layers;
    if (memory_.empty() || batch_ != steps.size()) {
      memory_.clear();
      batch_ = steps.size();
      for (const LayerShape& l : layers)
        memory_.push_back(std::make_unique<LayerMemory>(l, batch_));
    }
    for (std::size_t l = 0; l < layers.size(); ++l) {
      for (std::size_t i = 0; i < steps.size(); ++i) {
        const KvRows rows = texts[i]->rows(l, firsts[i], 1);
        const Queries q = texts[i]->queries(l, firsts[i], 1);
        const auto put = [&](const DeviceArray<float>& to, const float* from,
                             std::int32_t numbers) {
          EXPECT_EQ(cudaMemcpy(static_cast<float*>(to.data()) + i * std::size_t(numbers), from,
                               std::size_t(numbers) * sizeof(float), cudaMemcpyHostToDevice),
                    cudaSuccess);
        };
        put(memory_[l]->keys, rows.keys.data, layers[l].kv_heads * layers[l].key_dim);
        put(memory_[l]->values, rows.values.data, layers[l].kv_heads * layers[l].value_dim);
        put(memory_[l]->queries, q.rows.data, layers[l].query_heads * layers[l].key_dim);
      }
    }
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto fit = step_.begin(steps, stream_);
    EXPECT_TRUE(fit) << (fit ? "" : fit.error().message);
    EXPECT_NE(*fit, RecordedStep::Fit::kNone);
    if (*fit == RecordedStep::Fit::kNew) record(layers.size());
    EXPECT_EQ(cudaGraphLaunch(graph_, stream_), cudaSuccess);
    expect_ok(step_.end(steps, stream_));
    std::vector<float> all;
    for (const auto& memory : memory_) {
      const std::vector<float> out = memory->out.read();
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  }
  int recorded() const { return recorded_; }

 private:
  void record(std::size_t layers) {
    ++recorded_;
    if (graph_ != nullptr) {
      KVSPAN_CUDA_OK(cudaGraphExecDestroy(graph_));
    }
    KVSPAN_CUDA_OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    for (std::size_t l = 0; l < layers; ++l) {
      const LayerMemory& m = *memory_[l];
      const DeviceRows queries{m.queries.data(), DeviceNumber::kF32},
          keys{m.keys.data(), DeviceNumber::kF32}, values{m.values.data(), DeviceNumber::kF32};
      const auto layer = static_cast<int>(l);
      const bool branches = step_.branches(layer);
      if (branches) {
        cudaStream_t beside = nullptr;
        KVSPAN_CUDA_OK(branch_.fork(stream_, beside));
        expect_ok(step_.queries(layer, queries, beside));
      }
      expect_ok(step_.rows(layer, &keys, &values, queries, stream_));
      if (branches) {
        KVSPAN_CUDA_OK(branch_.join(stream_));
      }
      expect_ok(step_.finish(layer, {m.out.data(), DeviceNumber::kF32}, stream_));
    }
    cudaGraph_t graph = nullptr;
    KVSPAN_CUDA_OK(cudaStreamEndCapture(stream_, &graph));
    KVSPAN_CUDA_OK(cudaGraphInstantiate(&graph_, graph, cudaGraphInstantiateFlagUseNodePriority));
    cudaGraphDestroy(graph);
  }

  DeviceCache& cache_;
  RecordedStep step_;
  cudaStream_t stream_ = nullptr;
  cuda::GraphBranch branch_;
  cudaGraphExec_t graph_ = nullptr;
  std::vector<std::unique_ptr<LayerMemory>> memory_;
  std::size_t batch_ = 0;
  int recorded_ = 0;
};

// Layers of one shape, every other one with a window.
CacheShape layered_shape(std::int32_t kv_heads, std::int32_t repeats, std::int32_t dim,
                         std::int32_t window) {
  CacheShape shape = synthetic_shape(3, kv_heads, dim);
  for (LayerShape& l : shape.layers) l.query_heads = repeats * kv_heads;
  shape.layers[1].window = window;
  return shape;
}

void check_replays(const CacheShape& shape, const std::string& recipe,
                   std::span<const std::int32_t> lengths, std::int32_t steps) {
  constexpr std::int32_t kText = 1500;
  const SyntheticText text(shape, kText, 47);
  const Calibration calibration = text.calibration();
  DeviceOptions options;
  options.budget_bytes = std::size_t{192} << 20;
  options.max_sequences = 8;
  options.max_tokens = 4096;
  options.launch_tokens = 8 * 4096;
  const auto called = made_cache(shape, recipe, calibration, options);
  const auto replayed = made_cache(shape, recipe, calibration, options);
  ASSERT_TRUE(called != nullptr && replayed != nullptr);
  Replays replays(*replayed);
  std::vector<DeviceStep> of_batch;
  std::vector<const SyntheticText*> texts;
  std::vector<std::int32_t> firsts;
  for (const std::int32_t n : lengths) {
    for (DeviceCache* cache : {called.get(), replayed.get()}) {
      const std::int32_t s = cache->add().value();
      for (std::int32_t done = 0; done < n; done += kText) {
        step_layers(*cache, s, text, 0, std::min(kText, n - done));
      }
    }
    of_batch.push_back({static_cast<std::int32_t>(of_batch.size()), 1});
    texts.push_back(&text);
    firsts.push_back(n % (kText / 2));
  }
  for (std::int32_t i = 0; i < steps; ++i) {
    // In between steps of the first sequence alone, which are recorded anew.
    const std::size_t batch = i % 100 == 99 ? 1 : of_batch.size();
    const auto own_steps = std::span(of_batch).first(batch);
    const auto own_texts = std::span(texts).first(batch);
    const auto own_firsts = std::span(firsts).first(batch);
    std::vector<float> expected;
    for (std::size_t l = 0; l < shape.layers.size(); ++l) {
      const std::vector<float> out =
          step(*called, static_cast<int>(l), own_steps, own_texts, own_firsts);
      expected.insert(expected.end(), out.begin(), out.end());
    }
    const std::vector<float> got = replays.step(own_steps, own_texts, own_firsts);
    ASSERT_EQ(got, expected) << "step " << i;
    for (std::int32_t& first : std::span(firsts).first(batch)) first = (first + 1) % kText;
  }
  EXPECT_LT(replays.recorded(), steps / 4);
  for (std::size_t s = 0; s < of_batch.size(); ++s) {
    for (std::size_t l = 0; l < shape.layers.size(); ++l) {
      const auto number = static_cast<std::int32_t>(s);
      if (recipe == "full") break;
      EXPECT_EQ(called->read_tiles(number, static_cast<int>(l), 0).value(),
                replayed->read_tiles(number, static_cast<int>(l), 0).value());
    }
  }
}

constexpr const char* kCodes =
    "bands:quantizer=uniform,escape=0,sink=32,recent=48,levels=0/2/4,bits=2,anchor=128";

TEST(RecordedStep, OneSequenceAnswersAsCalled) {
  KVSPAN_NEEDS_DEVICE();
  check_replays(layered_shape(2, 6, 128, 300), kCodes, std::array{700}, 330);
}

TEST(RecordedStep, SequencesOfDifferentLengthsAnswerAsCalled) {
  KVSPAN_NEEDS_DEVICE();
  check_replays(layered_shape(2, 4, 64, 0), kCodes, std::array{3000, 40, 1, 900, 260}, 330);
}

TEST(RecordedStep, RowsThatAreNotCodedAnswerAsCalled) {
  KVSPAN_NEEDS_DEVICE();
  check_replays(layered_shape(2, 6, 128, 300), "full", std::array{2000, 5, 63}, 330);
}

TEST(RecordedStep, StepsThatNoGraphTakesChangeNothing) {
  KVSPAN_NEEDS_DEVICE();
  const CacheShape shape = layered_shape(2, 4, 64, 0);
  const SyntheticText text(shape, 300, 48);
  DeviceOptions options;
  options.max_tokens = 201;
  const auto cache = made_cache(shape, kCodes, text.calibration(), options);
  ASSERT_NE(cache, nullptr);
  const std::int32_t s = cache->add().value();
  step_layers(*cache, s, text, 0, 200);
  RecordedStep recorded(*cache);
  const DeviceStep two[] = {{s, 2}}, one[] = {{s, 1}}, other[] = {{7, 1}};
  EXPECT_EQ(recorded.begin(two, nullptr).value(), RecordedStep::Fit::kNone);
  EXPECT_FALSE(recorded.begin(other, nullptr));
  EXPECT_EQ(cache->tokens(s).value(), 200);
  step_layers(*cache, s, text, 200, 1);
  EXPECT_EQ(recorded.begin(one, nullptr).value(), RecordedStep::Fit::kNone);  // max_tokens
  // A layer that is ahead of others.
  const DeviceStep ahead[] = {{cache->add().value(), 1}};
  const SyntheticText* const texts[] = {&text};
  const std::int32_t firsts[] = {0};
  step(*cache, 0, ahead, texts, firsts);
  EXPECT_EQ(recorded.begin(ahead, nullptr).value(), RecordedStep::Fit::kNone);
}

}  // namespace
}  // namespace kvspan::testing
