// SPDX-License-Identifier: Apache-2.0
#include "model/compiled_graph.h"

#include "base/fail.h"

namespace kvspan {
namespace {

// Nodes a layer may take; the largest architecture here uses about 40.
constexpr std::size_t kNodesPerLayer = 64;
constexpr std::size_t kOtherNodes = 64;

}  // namespace

Result<std::unique_ptr<CompiledGraph>> CompiledGraph::make(const Architecture& architecture,
                                                           std::int32_t tokens,
                                                           std::int32_t outputs,
                                                           ggml_threadpool* pool, int threads,
                                                           AttentionRun* run) {
  auto compiled = std::unique_ptr<CompiledGraph>(new CompiledGraph);
  compiled->tokens_ = tokens;
  compiled->outputs_ = outputs;
  const int layers = architecture.config().layers;
  for (int i = 0; i < layers; ++i) compiled->layers_.push_back({run, i});

  const std::size_t nodes = static_cast<std::size_t>(layers) * kNodesPerLayer + kOtherNodes;
  const std::size_t bytes =
      nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes, false);
  compiled->ctx_ = ggml_init({bytes, nullptr, /*no_alloc=*/true});
  if (compiled->ctx_ == nullptr) return fail(ErrorCode::kOutOfBudget, "no memory for a graph");
  const GraphBuilder builder(compiled->ctx_, tokens, outputs, compiled->layers_);
  compiled->inputs_ = builder.inputs();
  compiled->logits_ = architecture.build(builder);
  ggml_set_output(compiled->logits_);
  compiled->graph_ = ggml_new_graph_custom(compiled->ctx_, nodes, false);
  ggml_build_forward_expand(compiled->graph_, compiled->logits_);

  compiled->memory_ = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
  if (!ggml_gallocr_alloc_graph(compiled->memory_, compiled->graph_)) {
    return fail(ErrorCode::kOutOfBudget, "no memory for the activations of {} tokens", tokens);
  }
  compiled->plan_ = ggml_graph_plan(compiled->graph_, threads, pool);
  compiled->work_.resize(compiled->plan_.work_size);
  compiled->plan_.work_data = compiled->work_.data();
  return compiled;
}

CompiledGraph::~CompiledGraph() {
  if (memory_ != nullptr) ggml_gallocr_free(memory_);
  if (ctx_ != nullptr) ggml_free(ctx_);
}

std::size_t CompiledGraph::bytes() const noexcept {
  return ggml_gallocr_get_buffer_size(memory_, 0) + work_.size() + ggml_get_mem_size(ctx_);
}

bool CompiledGraph::compute(ggml_abort_callback abort, void* abort_data) {
  plan_.abort_callback = abort;
  plan_.abort_callback_data = abort_data;
  return ggml_graph_compute(graph_, &plan_) == GGML_STATUS_SUCCESS;
}

}  // namespace kvspan
