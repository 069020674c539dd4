// SPDX-License-Identifier: Apache-2.0
// What stands around an attention node, for calibration: the residual stream that enters the layer,
// the matrix that takes attention's output back to it, and a norm that may follow.
#pragma once

#include <ggml.h>

#include <span>
#include <string>

namespace kvspan {

struct LayerTrace {
  std::string input;                           // node: the residual stream that enters the layer
  const ggml_tensor* output_weight = nullptr;  // [query_heads * value_dim, hidden]; null: not found
  std::string post_norm_input;                 // node: what a norm after that matrix gets, or ""
  const ggml_tensor* post_norm_gain = nullptr;  // [hidden], or null
  float post_norm_epsilon = 0.0f;
  const ggml_tensor* reader_gain = nullptr;  // [hidden], of the norm that reads the residual stream next, or null
};

// nodes: of the graph so far or whole, in order; `attention` is one of them, and `key_rows` are the
// rows that it stores. What cannot be found stays empty.
LayerTrace trace_layer(std::span<const ggml_tensor* const> nodes, const ggml_tensor* attention,
                       const ggml_tensor* key_rows);

}  // namespace kvspan
