// SPDX-License-Identifier: Apache-2.0
// A model's graph for one batch shape, with its memory and execution plan. Because attention is a
// node that asks the cache, the graph does not depend on the context length: the one for a single
// token is made once and serves a whole conversation.
#pragma once

#include <ggml-alloc.h>
#include <ggml-cpu.h>

#include <memory>
#include <vector>

#include "model/architecture.h"

namespace kvspan {

class CompiledGraph {
 public:
  // Fails only for lack of memory. `run` is where the attention nodes look for the batch.
  static Result<std::unique_ptr<CompiledGraph>> make(const Architecture& architecture,
                                                     std::int32_t tokens, std::int32_t outputs,
                                                     ggml_threadpool* pool, int threads,
                                                     AttentionRun* run);
  ~CompiledGraph();
  CompiledGraph(const CompiledGraph&) = delete;
  CompiledGraph& operator=(const CompiledGraph&) = delete;

  std::int32_t tokens() const noexcept { return tokens_; }
  std::int32_t outputs() const noexcept { return outputs_; }
  const GraphInputs& inputs() const noexcept { return inputs_; }
  const float* logits() const noexcept { return static_cast<const float*>(logits_->data); }
  std::size_t bytes() const noexcept;

  // False when `abort` said stop.
  bool compute(ggml_abort_callback abort, void* abort_data);

 private:
  CompiledGraph() = default;

  std::int32_t tokens_ = 0;
  std::int32_t outputs_ = 0;
  std::vector<AttentionLayer> layers_;
  ggml_context* ctx_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_gallocr_t memory_ = nullptr;
  GraphInputs inputs_;
  ggml_tensor* logits_ = nullptr;
  ggml_cplan plan_{};
  std::vector<std::uint8_t> work_;
};

}  // namespace kvspan
