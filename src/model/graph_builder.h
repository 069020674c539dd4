// SPDX-License-Identifier: Apache-2.0
// The vocabulary that architecture files write their graphs in: a thin layer over ggml's operations
// that knows the batch's inputs and where attention goes.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <span>

#include "model/attention_node.h"
#include "model/model_config.h"
#include "model/repack.h"

namespace kvspan {

struct Linear {
  Matrix matrix;
  ggml_tensor* bias = nullptr;  // [out], or null
};

struct Norm {
  ggml_tensor* weight = nullptr;
  ggml_tensor* bias = nullptr;  // or null
  float epsilon = 1e-5f;
  bool root_mean_square = true;  // RMSNorm; otherwise LayerNorm
};

// The batch's inputs, filled before the graph is computed.
struct GraphInputs {
  ggml_tensor* tokens = nullptr;     // i32 [n]
  ggml_tensor* positions = nullptr;  // i32 [n]
  ggml_tensor* outputs = nullptr;    // i32 [m], the rows whose logits are wanted
};

class GraphBuilder {
 public:
  // `layers` outlive the graph. Creates the inputs in `ctx`.
  GraphBuilder(ggml_context* ctx, std::int32_t tokens, std::int32_t outputs,
               std::span<AttentionLayer> layers);

  ggml_context* ctx() const noexcept { return ctx_; }
  const GraphInputs& inputs() const noexcept { return inputs_; }

  // Rows of a table: tokens [hidden, n], or positions.
  ggml_tensor* embed(ggml_tensor* table) const;
  ggml_tensor* embed_positions(ggml_tensor* table) const;
  ggml_tensor* norm(ggml_tensor* x, const Norm& norm) const;
  ggml_tensor* linear(ggml_tensor* x, const Linear& linear) const;
  // [dim * count, n] -> [dim, count, n]
  ggml_tensor* heads(ggml_tensor* x, std::int32_t dim, std::int32_t count) const;
  // Rotates [dim, heads, n] by the positions. `factors` may be null.
  ggml_tensor* rope(ggml_tensor* x, const RopeConfig& rope, ggml_tensor* factors) const;
  ggml_tensor* attend(int layer, ggml_tensor* queries, ggml_tensor* keys,
                      ggml_tensor* values) const;
  // `x`, shown to an observer of the engine where there is one.
  ggml_tensor* observe(int layer, Observed what, ggml_tensor* x) const;
  // Only the wanted rows; used once, in the last layer, on everything that goes on from there.
  ggml_tensor* select_outputs(ggml_tensor* x) const;

 private:
  ggml_context* ctx_;
  GraphInputs inputs_;
  std::span<AttentionLayer> layers_;
};

}  // namespace kvspan
