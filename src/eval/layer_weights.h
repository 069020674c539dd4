// SPDX-License-Identifier: Apache-2.0
// What a layer's coding error costs at the model's end, measured: each layer's keys, and then its
// values, are coded alone, and the KL divergence from the exact cache is held against the
// distortion that the metrics predict (spec section 3, bands, item 2). Errors come from reading
// what is coded, so each passage is read once, exactly, and only a short block after it once for
// each side of each layer, with that side coded. Half of the block is text read before, so that the
// layers that look things up count.
// Cost: a passage and 2 layers + 1 blocks of a sixth of it, for each passage.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eval/calibrate.h"
#include "kvspan/calibration.h"
#include "model/engine.h"

namespace kvspan {

// Fills key_weight and value_weight of `calibration`, whose arrays are in memory and fit the
// engine's shape. `engine` reads the same model, better with float weights: where weights are
// quantized, its own rounding of activations hides small errors. Passages are of at least 96
// tokens, and 7 / 6 of them within the model's context. The coded side gets `bits` bits a number.
// Stops with kCancelled when the engine's cancel flag is set; the calibration is then as it was.
Status measure_layer_weights(Engine& engine, std::span<const std::vector<Token>> passages,
                             double bits, Calibration& calibration,
                             const TokenProgress& progress = nullptr);

}  // namespace kvspan
