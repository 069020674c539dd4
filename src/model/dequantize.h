// SPDX-License-Identifier: Apache-2.0
// A copy of a GGUF model with every weight as f32. Same numbers, no 8-bit activations: with
// quantized weights ggml rounds activations to 8 bits, so that the slightest difference between two
// engines grows, layer by layer, to that rounding's size. With f32 weights two correct engines
// agree to f32 rounding.
#pragma once

#include <string>
#include <vector>

#include "kvspan/result.h"

struct ggml_tensor;

namespace kvspan {

// The tensor's numbers as f32, row by row; empty for a type ggml cannot read.
std::vector<float> floats_of(const ggml_tensor* tensor);

// Writes the file at once under `to` (replacing it); 4 bytes a weight. Nothing stays on failure.
Status write_f32_model(const std::string& from, const std::string& to);

}  // namespace kvspan
