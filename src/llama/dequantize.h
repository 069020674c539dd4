// SPDX-License-Identifier: Apache-2.0
// A copy of a GGUF model with every weight as f32 or f16. Same numbers, no 8-bit activations: with
// quantized weights ggml rounds activations to 8 bits, so that the slightest difference between two
// engines grows, layer by layer, to that rounding's size. With f32 weights two correct engines
// agree to f32 rounding; with f16, which is faster, activations are rounded to 11 bits.
#pragma once

#include <string>
#include <vector>

#include "kvspan/result.h"

struct ggml_tensor;

namespace kvspan {

// The tensor's numbers as f32, row by row; empty for a type ggml cannot read.
std::vector<float> floats_of(const ggml_tensor* tensor);

enum class FloatWeights { kF32, kF16 };  // f16: matrices only

// Writes the file at once under `to` (replacing it). Nothing stays on failure.
Status write_float_model(const std::string& from, FloatWeights weights, const std::string& to);

}  // namespace kvspan
