// SPDX-License-Identifier: Apache-2.0
// How much of a key or value lies outside the leading directions of its head, over a calibration's
// samples: what thresholds on relative residuals (tau) are chosen from.
#pragma once

#include <cstdint>
#include <span>

#include "kvspan/calibration.h"

namespace kvspan {

// Fills key_residuals and value_residuals from the layer's moments and sample rows. Percentiles
// interpolate between order statistics. Fails on a moment that is not finite.
Status add_sample_residuals(const LayerShape& shape, std::span<const std::int32_t> positions,
                            LayerCalibration& layer);

}  // namespace kvspan
