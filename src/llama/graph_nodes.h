// SPDX-License-Identifier: Apache-2.0
// Reading nodes of ggml graphs that libllama has built.
#pragma once

#include <ggml.h>

#include <vector>

#include "kvspan/cache.h"

namespace kvspan {

// The tensor whose memory `tensor` looks at: itself unless it is a view.
const ggml_tensor* memory_of(const ggml_tensor* tensor);

// Whether the node computes nothing: another look at its source's memory.
bool is_view(const ggml_tensor* node);

// Entry `index` of op_params as a float.
float float_param(const ggml_tensor* node, int index);

// The whole tensor as f32, wherever its memory is. Empty where it is of another type than f32, or
// not contiguous.
std::vector<float> read_floats(const ggml_tensor* tensor);

// The ROPE node that turned key rows, or null where none did, or where something followed it that
// does not commute with turning.
const ggml_tensor* rope_behind(const ggml_tensor* rows);

// The same rotation as the numbers that caches work with. Positions of text: all sections of a
// multi-dimensional rotation (M-RoPE) turn by the same one.
Rope rope_of(const ggml_tensor* rope_node);
// The context length that it was made for.
std::int32_t original_context_of(const ggml_tensor* rope_node);

}  // namespace kvspan
