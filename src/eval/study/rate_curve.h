// SPDX-License-Identifier: Apache-2.0
// What `bands` costs by its bits, measured on windows of text: what auto chooses by.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "eval/calibrate/calibrate.h"
#include "kvspan/calibration.h"
#include "llama/engine.h"

namespace kvspan {

// Fills `rates` of `calibration`, whose layer weights are measured already where they will be.
// Windows are of one length, within the model's context. The recent tokens kept exact are few, so
// that a short window costs what a long one would.
// Cost: kRatePasses over each window.
inline constexpr std::size_t kRatePasses = 8;
Status measure_rates(Engine& engine, std::span<const std::vector<Token>> windows,
                     Calibration& calibration, const TokenProgress& progress = nullptr);

}  // namespace kvspan
