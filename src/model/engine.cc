// SPDX-License-Identifier: Apache-2.0
#include "model/engine.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/expect.h"
#include "base/fail.h"
#include "model/arch/blocks.h"
#include "model/compiled_graph.h"
#include "model/dequantize.h"
#include "model/fingerprint.h"
#include "model/ggml_log.h"
#include "model/threadpool.h"

namespace kvspan {
namespace {

// Graphs kept for reuse: one token, a whole block, and the last part of a prompt.
constexpr std::size_t kGraphsKept = 3;

bool cancelled(void* flag) {
  const auto* cancel = static_cast<const std::atomic<bool>*>(flag);
  return cancel != nullptr && cancel->load(std::memory_order_relaxed);
}

ModelInfo describe(const GgufFile& file, const ModelConfig& config) {
  ModelInfo info;
  info.path = file.path();
  info.architecture = config.architecture;
  info.name = config.name;
  info.layers = config.layers;
  info.hidden = config.hidden;
  info.vocabulary = config.vocabulary;
  info.context = config.context;
  info.query_heads = config.query_heads;
  info.kv_heads = config.kv_heads;
  info.key_dim = config.key_dim;
  info.file_bytes = file.file_bytes();
  info.weight_bytes = file.tensor_bytes();
  return info;
}

}  // namespace

struct Engine::Impl {
  EngineOptions options;
  std::unique_ptr<GgufFile> file;
  std::unique_ptr<Architecture> architecture;
  ModelInfo info;
  CacheShape shape;
  Threadpool threads;
  std::unique_ptr<AttentionScratch, void (*)(AttentionScratch*)> scratch{nullptr, nullptr};
  AttentionRun run;
  std::vector<std::unique_ptr<CompiledGraph>> graphs;  // most recently used last
  const CompiledGraph* last = nullptr;
  const std::atomic<bool>* cancel = nullptr;

  Result<CompiledGraph*> graph_for(std::int32_t tokens, std::int32_t outputs);
  Status check(std::span<const BatchPart> batch) const;
  std::vector<std::int32_t> fill_run(std::span<const BatchPart> batch);
};

Result<CompiledGraph*> Engine::Impl::graph_for(std::int32_t tokens, std::int32_t outputs) {
  const auto found = std::find_if(graphs.begin(), graphs.end(), [&](const auto& g) {
    return g->tokens() == tokens && g->outputs() == outputs;
  });
  if (found != graphs.end()) {
    std::rotate(found, found + 1, graphs.end());
    return graphs.back().get();
  }
  if (graphs.size() == kGraphsKept) {
    // The graph of a single token is in use all the time; it is never the one to go.
    const auto victim = graphs.front()->tokens() == 1 ? graphs.begin() + 1 : graphs.begin();
    graphs.erase(victim);
  }
  KVSPAN_TRY(auto graph, CompiledGraph::make(*architecture, tokens, outputs, threads.get(),
                                             options.threads, &run));
  graphs.push_back(std::move(graph));
  return graphs.back().get();
}

Status Engine::Impl::check(std::span<const BatchPart> batch) const {
  std::size_t total = 0;
  for (const BatchPart& part : batch) {
    KVSPAN_EXPECT(part.cache != nullptr, "a part has a cache");
    KVSPAN_EXPECT(part.cache->shape() == shape, "the cache was made for this model");
    if (part.tokens.empty())
      return fail(ErrorCode::kInvalidArgument, "a sequence has no new tokens");
    total += part.tokens.size();
    for (std::size_t i = 0; i < part.tokens.size(); ++i) {
      const Token token = part.tokens[i];
      if (token < 0 || token >= info.vocabulary) {
        return fail(ErrorCode::kInvalidArgument, "token {} at index {} is outside 0..{}", token, i,
                    info.vocabulary - 1);
      }
    }
    const std::size_t end = static_cast<std::size_t>(part.cache->tokens()) + part.tokens.size();
    if (end > static_cast<std::size_t>(info.context)) {
      return fail(ErrorCode::kOutOfBudget, "{} tokens exceed the model's context of {}", end,
                  info.context);
    }
  }
  KVSPAN_EXPECT(total >= 1 && total <= static_cast<std::size_t>(options.block),
                "a batch holds 1 to options().block tokens");
  return {};
}

// Positions and row ranges of the batch; returns the rows whose logits are wanted.
std::vector<std::int32_t> Engine::Impl::fill_run(std::span<const BatchPart> batch) {
  run.sequences.clear();
  run.positions.clear();
  run.error.reset();
  run.seconds = 0.0;
  std::vector<std::int32_t> outputs;
  for (const BatchPart& part : batch) {
    const auto begin = static_cast<std::int32_t>(run.positions.size());
    const auto end = begin + static_cast<std::int32_t>(part.tokens.size());
    run.sequences.push_back({part.cache, begin, end});
    for (std::int32_t row = begin; row < end; ++row) {
      run.positions.push_back(part.cache->tokens() + row - begin);
      if (part.logits == BatchPart::Logits::kAll || row + 1 == end) outputs.push_back(row);
    }
  }
  run.whole = share_out(run.sequences, options.threads);
  while (run.whole > 0 && run.alone.size() < static_cast<std::size_t>(options.threads)) {
    run.alone.push_back(std::make_unique<LoneThread>());
  }
  return outputs;
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::load(const std::string& path,
                                             const EngineOptions& options) {
  KVSPAN_EXPECT(options.threads >= 1 && options.block >= 1, "at least one thread and token");
  silence_ggml();
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  KVSPAN_TRY(impl->file, GgufFile::open(path));
  KVSPAN_TRY(impl->architecture, load_architecture(*impl->file));
  impl->info = describe(*impl->file, impl->architecture->config());
  impl->shape = impl->architecture->cache_shape();
  ggml_cpu_init();
  impl->threads = make_threadpool(options.threads);
  if (!impl->threads) {
    return fail(ErrorCode::kIo, "cannot start {} threads", options.threads);
  }
  impl->scratch = make_attention_scratch();
  impl->run.scratch = impl->scratch.get();
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

const ModelInfo& Engine::info() const noexcept {
  return impl_->info;
}
const CacheShape& Engine::cache_shape() const noexcept {
  return impl_->shape;
}
const EngineOptions& Engine::options() const noexcept {
  return impl_->options;
}

std::string Engine::fingerprint() const {
  return fingerprint_of(*impl_->file);
}

Result<OutputProjection> Engine::output_projection(int layer) const {
  KVSPAN_EXPECT(layer >= 0 && layer < impl_->info.layers, "the model has this layer");
  OutputProjection projection;
  const GgufFile& file = *impl_->file;
  const std::string name = layer_name(layer, "attn_output.weight");
  const LayerShape& shape = impl_->shape.layers[static_cast<std::size_t>(layer)];
  KVSPAN_TRY(const ggml_tensor* matrix,
             file.require_tensor(name, std::int64_t{shape.query_heads} * shape.value_dim,
                                 impl_->info.hidden));
  projection.weights = floats_of(matrix);
  if (projection.weights.empty()) {
    return fail(ErrorCode::kUnsupported, "'{}': tensor '{}' of type {} cannot be read as f32",
                file.path(), name, ggml_type_name(matrix->type));
  }
  const std::string norm = layer_name(layer, "post_attention_norm.weight");
  if (impl_->architecture->has_post_attention_norm(layer)) {
    KVSPAN_TRY(const ggml_tensor* gain, file.require_tensor(norm, impl_->info.hidden));
    projection.gain = floats_of(gain);
    projection.epsilon = impl_->architecture->config().norm_epsilon;
  }
  return projection;
}

Status Engine::decode(std::span<const BatchPart> batch) {
  Impl& impl = *impl_;
  KVSPAN_CHECK_OK(impl.check(batch));
  const std::vector<std::int32_t> outputs = impl.fill_run(batch);
  KVSPAN_TRY(CompiledGraph * graph,
             impl.graph_for(static_cast<std::int32_t>(impl.run.positions.size()),
                            static_cast<std::int32_t>(outputs.size())));
  const GraphInputs& inputs = graph->inputs();
  auto* tokens = static_cast<Token*>(inputs.tokens->data);
  for (const BatchPart& part : batch) {
    tokens = std::copy(part.tokens.begin(), part.tokens.end(), tokens);
  }
  std::copy(impl.run.positions.begin(), impl.run.positions.end(),
            static_cast<std::int32_t*>(inputs.positions->data));
  std::copy(outputs.begin(), outputs.end(), static_cast<std::int32_t*>(inputs.outputs->data));

  const bool finished =
      graph->compute(cancelled, const_cast<void*>(static_cast<const void*>(impl.cancel)));
  impl.last = graph;
  if (finished && !impl.run.error) return {};

  // Layers before the failing one hold the new rows, later ones do not: take them all back, or,
  // with a method that cannot, all there is: layers that hold different tokens are of no use.
  for (const SequenceRows& rows : impl.run.sequences) {
    const std::int32_t before = impl.run.positions[static_cast<std::size_t>(rows.begin)];
    if (!rows.cache->truncate(before)) rows.cache->clear();
  }
  impl.last = nullptr;
  if (impl.run.error) return *std::move(impl.run.error);
  return fail(ErrorCode::kCancelled, "stopped");
}

std::int32_t Engine::logit_rows() const noexcept {
  return impl_->last == nullptr ? 0 : impl_->last->outputs();
}

std::span<const float> Engine::logits(std::int32_t row) const noexcept {
  KVSPAN_EXPECT(row >= 0 && row < logit_rows(), "a row of the last decode");
  const auto width = static_cast<std::size_t>(impl_->info.vocabulary);
  return {impl_->last->logits() + static_cast<std::size_t>(row) * width, width};
}

Status Engine::prefill(KvCache& cache, std::span<const Token> tokens,
                       const std::function<void(std::size_t)>& progress) {
  if (tokens.empty()) return fail(ErrorCode::kInvalidArgument, "there are no tokens to read");
  const auto block = static_cast<std::size_t>(impl_->options.block);
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t count = std::min(block, tokens.size() - done);
    const BatchPart part{&cache, tokens.subspan(done, count), BatchPart::Logits::kLast};
    KVSPAN_CHECK_OK(decode({&part, 1}));
    done += count;
    if (progress) progress(done);
  }
  return {};
}

void Engine::set_cancel_flag(const std::atomic<bool>* flag) noexcept {
  impl_->cancel = flag;
}

void Engine::set_observer(ActivationObserver* observer) {
  // Graphs show activations only if made to.
  impl_->last = nullptr;
  impl_->graphs.clear();
  impl_->run.observer = observer;
}

double Engine::attention_seconds() const noexcept {
  return impl_->run.seconds;
}

std::size_t Engine::workspace_bytes() const noexcept {
  std::size_t sum = 0;
  for (const auto& graph : impl_->graphs) sum += graph->bytes();
  return sum;
}

}  // namespace kvspan
