// SPDX-License-Identifier: Apache-2.0
// Attention nodes of ggml's CUDA backend, answered by kvspan's device caches.
#include "llama/device_answer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "cuda/recorded_step.h"
#include "kvspan/cuda_home.h"
#include "llama/cuda/ggml_stream.h"
#include "llama/cuda/prompt_attention.h"
#include "llama/graph_nodes.h"

namespace kvspan {
namespace {

// Coded tokens that one launch reads: those of all sequences, or of some queries of one. Beyond a
// million the device is full anyway, and working memory grows with it.
constexpr std::int64_t kLeastLaunchQueries = 8, kLaunchTokens = std::int64_t{1} << 20;

template <class T>
DeviceRows device_rows(const TensorView<T, 3>& rows) {
  return {rows.data, DeviceNumber::kF32, static_cast<std::int64_t>(rows.strides[0]),
          static_cast<std::int64_t>(rows.strides[1])};
}

DeviceOut device_out(const TensorView<float, 3>& out) {
  return {out.data, DeviceNumber::kF32, static_cast<std::int64_t>(out.strides[0]),
          static_cast<std::int64_t>(out.strides[1])};
}

class CudaAnswer final : public DeviceAnswer {
 public:
  explicit CudaAnswer(ggml_backend_dev_t device) : device_(device), ggml_(device) {}
  ~CudaAnswer() override { forget_graph(); }

  bool reads(const ggml_tensor* tensor) const override {
    const ggml_tensor* memory = memory_of(tensor);
    if (memory->buffer == nullptr || ggml_backend_buffer_is_host(memory->buffer)) return false;
    return ggml_backend_buft_get_device(ggml_backend_buffer_get_type(memory->buffer)) == device_;
  }

  Result<CacheFactory> place(const CacheFactory& caches, std::int32_t sequences,
                             std::int32_t tokens) override {
    // Codes of a recipe are the same as long as the calibration is.
    const std::pair key(caches.recipe(), caches.calibration_checksum());
    KVSPAN_TRY(const bool calibrated, needs_calibration(caches.recipe()));
    if (const auto found = homes_.find(key);
        found != homes_.end() && (key.second != 0 || !calibrated)) {
      return caches.kept_in(found->second);
    }
    // What no cache uses any more makes room.
    std::erase_if(homes_, [](const auto& home) { return home.second.use_count() == 1; });
    DeviceOptions options;
    options.budget_bytes = 0;
    options.max_sequences = sequences;
    options.spare_sequences = 1;
    options.max_tokens = tokens;
    options.launch_tokens =
        std::min(std::max<std::int64_t>(kLeastLaunchQueries, sequences) * tokens, kLaunchTokens);
    options.rebuild_tokens = PromptAttention::kRebuildTokens;
    if (ggml_.get() == nullptr) {
      return fail(ErrorCode::kUnsupported, "ggml has made no stream on {}",
                  ggml_backend_dev_name(device_));
    }
    KVSPAN_TRY(auto home, DeviceHome::create(caches, options, ggml_.get()));
    homes_[key] = home;
    return caches.kept_in(std::move(home));
  }

  bool holds(const Ubatch& ubatch) const override {
    const auto home = DeviceHome::of(*ubatch.sequences.front().cache);
    return home != nullptr &&
           std::all_of(ubatch.sequences.begin(), ubatch.sequences.end(),
                       [&](const SequenceRows& of) { return DeviceHome::of(*of.cache) == home; });
  }

  void announce() override { ggml_.run_ahead(); }

  Status answer(int layer, const Ubatch& ubatch, const NodeRows& rows) override {
    ++answered_;
    if (recording()) return record(layer, rows);
    if (ggml_.waits() != waits_) in_pieces_ = true;
    const auto home = DeviceHome::of(*ubatch.sequences.front().cache);
    KVSPAN_CHECK_OK(set_steps(ubatch));
    const auto lock = home->lock();
    DeviceCache& cache = home->device();
    DeviceStream stream = home->stream();
    if (rows.stores) {
      KVSPAN_CHECK_OK(
          cache.append(layer, steps_, device_rows(rows.keys), device_rows(rows.values), stream));
    }
    KVSPAN_TRY(const bool prompts,
               reads_prompts(cache.shape().layers[static_cast<std::size_t>(layer)], ubatch));
    if (prompts) {
      KVSPAN_CHECK_OK(answer_prompts(*home, layer, ubatch, rows));
    } else {
      KVSPAN_CHECK_OK(
          cache.attend(layer, steps_, device_rows(rows.queries), device_out(rows.out), stream));
    }
    return rows.settles ? cache.settle(layer, steps_, stream) : Status();
  }

  void graph_is_new() override {
    forget_graph();
    waits_ = ggml_.waits();
    in_pieces_ = false;
  }

  bool may_record(const Ubatch& ubatch) override {
    const bool single = std::all_of(ubatch.sequences.begin(), ubatch.sequences.end(),
                                    [](const SequenceRows& of) { return of.end - of.begin == 1; });
    return single && !in_pieces_ && ggml_.can_record();
  }

  Result<Step> begin_step(const Ubatch& ubatch, std::size_t nodes) override {
    const auto home = DeviceHome::of(*ubatch.sequences.front().cache);
    if (recorded_home_.lock() != home) {
      forget_graph();
      recorded_.emplace(home->device());
      recorded_home_ = home;
    }
    KVSPAN_CHECK_OK(set_steps(ubatch));
    const auto lock = home->lock();
    const auto stream = static_cast<cudaStream_t>(home->stream());
    KVSPAN_TRY(const RecordedStep::Fit fit, recorded_->begin(steps_, stream));
    if (fit == RecordedStep::Fit::kNone) return Step::kComputed;
    if (fit == RecordedStep::Fit::kRecorded && graph_ != nullptr) {
      KVSPAN_CHECK_OK(launch(stream));
      return Step::kReplayed;
    }
    forget_graph();
    nodes_ = nodes;
    answered_ = 0;
    KVSPAN_CHECK_OK(
        cuda::check(ggml_.record([this, home](cudaGraphExec_t graph) { recorded(graph, *home); }),
                    "recording a step"));
    return Step::kRecorded;
  }

  bool recording() const override { return ggml_.recording(); }

  Status queries_are_there(int layer, const NodeRows& rows) override {
    if (!recorded_->branches(layer)) return {};
    if (branched_ != nullptr)
      return {};  // those of another node come first; these are worked on with their node
    cudaStream_t beside = nullptr;
    KVSPAN_CHECK_OK(cuda::check(ggml_.fork(beside), "branching off a recorded step"));
    branched_ = rows.out.data;
    const auto home = recorded_home_.lock();
    const auto lock = home->lock();
    return recorded_->queries(layer, device_rows(rows.queries), beside);
  }

  Status end_step() override {
    Status outcome = std::move(recorded_outcome_);
    recorded_outcome_ = {};
    return outcome;
  }

 private:
  Status set_steps(const Ubatch& ubatch) {
    steps_.clear();
    for (const SequenceRows& of : ubatch.sequences) {
      KVSPAN_TRY(const std::int32_t sequence, DeviceHome::sequence_of(*of.cache));
      steps_.push_back({sequence, of.end - of.begin});
    }
    return {};
  }

  // A node of a step that is being recorded.
  Status record(int layer, const NodeRows& rows) {
    const auto home = recorded_home_.lock();
    const auto lock = home->lock();
    const cudaStream_t stream = ggml_.get();
    const DeviceRows keys = device_rows(rows.keys), values = device_rows(rows.values),
                     queries = device_rows(rows.queries);
    const bool own_branch = branched_ == rows.out.data;
    const auto join = [&] {
      if (branched_ == nullptr) return Status();
      branched_ = nullptr;
      return cuda::check(ggml_.join(), "joining the branches of a recorded step");
    };
    if (!own_branch) {
      KVSPAN_CHECK_OK(join());
      KVSPAN_CHECK_OK(recorded_->queries(layer, queries, stream));
    }
    KVSPAN_CHECK_OK(
        recorded_->rows(layer, rows.stores ? &keys : nullptr, &values, queries, stream));
    KVSPAN_CHECK_OK(join());
    return recorded_->finish(layer, device_out(rows.out), stream);
  }

  // The graph of a step is whole: it has not been computed yet.
  void recorded(cudaGraphExec_t graph, DeviceHome& home) {
    graph_ = graph;
    branched_ = nullptr;
    if (graph == nullptr || answered_ != nodes_) {
      forget_graph();
      in_pieces_ = true;  // it is not tried again
      recorded_outcome_ =
          fail(ErrorCode::kIo, "a step of the model could not be recorded as one graph");
      return;
    }
    const auto lock = home.lock();
    recorded_outcome_ = launch(static_cast<cudaStream_t>(home.stream()));
  }

  Status launch(cudaStream_t stream) {
    KVSPAN_CHECK_OK(cuda::check(cudaGraphLaunch(graph_, stream), "replaying a step"));
    return recorded_->end(steps_, stream);
  }

  void forget_graph() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    graph_ = nullptr;
  }

  // Tokens of a sequence when the ubatch has been appended.
  static std::int32_t tokens_of(const Ubatch& ubatch, const SequenceRows& of) {
    return ubatch.positions[static_cast<std::size_t>(of.end) - 1] + 1;
  }

  // Whether all sequences have so many queries that their rows are worth rebuilding.
  Result<bool> reads_prompts(const LayerShape& layer, const Ubatch& ubatch) {
    for (const SequenceRows& of : ubatch.sequences) {
      if (of.end - of.begin < PromptAttention::kLeastQueries) return false;
    }
    for (const SequenceRows& of : ubatch.sequences) {
      KVSPAN_TRY(const bool ready,
                 prompt_.ready(ggml_.backend(), layer, of.end - of.begin, tokens_of(ubatch, of)));
      if (!ready) return false;
    }
    return true;
  }

  Status answer_prompts(DeviceHome& home, int layer, const Ubatch& ubatch, const NodeRows& rows) {
    for (std::size_t i = 0; i < ubatch.sequences.size(); ++i) {
      const SequenceRows& of = ubatch.sequences[i];
      const auto own = [&](auto view) {
        view.data += static_cast<std::size_t>(of.begin) * view.strides[0];
        view.shape[0] = static_cast<std::size_t>(of.end - of.begin);
        return view;
      };
      KVSPAN_CHECK_OK(prompt_.attend(ggml_.backend(), home.device(), layer, steps_[i].sequence,
                                     tokens_of(ubatch, of), own(rows.queries), own(rows.out),
                                     static_cast<cudaStream_t>(home.stream())));
    }
    return {};
  }

  ggml_backend_dev_t device_;
  GgmlStream ggml_;
  PromptAttention prompt_;
  std::map<std::pair<std::string, std::uint64_t>, std::shared_ptr<DeviceHome>> homes_;
  std::vector<DeviceStep> steps_;

  // Steps as one graph.
  std::optional<RecordedStep> recorded_;
  std::weak_ptr<DeviceHome> recorded_home_;  // whose it is
  cudaGraphExec_t graph_ = nullptr;
  Status recorded_outcome_;
  const void* branched_ =
      nullptr;  // the result of the node whose queries are worked on beside ggml's nodes
  std::size_t answered_ = 0, nodes_ = 0;  // of a step that is recorded
  int waits_ = 0;                         // of ggml, when the graph was new
  bool in_pieces_ = false;                // ggml has waited between its nodes
};

}  // namespace

Result<std::unique_ptr<DeviceAnswer>> make_device_answer(ggml_backend_dev_t device) {
  // Device caches are made on CUDA's current device, which is the first.
  const std::string_view name = ggml_backend_dev_name(device);
  if (name != "CUDA0") {
    return fail(ErrorCode::kUnsupported, "caches on {} are not possible; allowed: CUDA0", name);
  }
  return std::unique_ptr<DeviceAnswer>(std::make_unique<CudaAnswer>(device));
}

}  // namespace kvspan
