// SPDX-License-Identifier: Apache-2.0
// What a layer's coding error costs at the model's end, measured: each layer's keys, and then its
// values, are coded alone, and the KL divergence from the exact cache, the geometric mean over
// windows, is held against the distortion that the metrics predict. Half of the measured
// predictions are of a passage read before, so that the layers that look things up count.
// Cost: 2 layers + layers / 5 passes over each window.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eval/calibrate/calibrate.h"
#include "kvspan/calibration.h"
#include "llama/engine.h"

namespace kvspan {

// Fills key_weight and value_weight of `calibration`, which fits the engine's shape. `engine` reads
// the same model, better with float weights: where weights are quantized, its own rounding of
// activations hides small errors. A passage of 3 n tokens becomes a window of 4 n, within the
// model's context; passages are of one length. The coded side gets `bits` bits a number. Stops with
// kCancelled when the engine's cancel flag is set.
Status measure_layer_weights(Engine& engine, std::span<const std::vector<Token>> passages,
                             double bits, Calibration& calibration,
                             const TokenProgress& progress = nullptr);

}  // namespace kvspan
