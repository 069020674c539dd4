// SPDX-License-Identifier: Apache-2.0
// Measured layer weights and rates that come with kvspan (data/calibration), for models that it
// knows.
#pragma once

#include "kvspan/calibration.h"
#include "kvspan/result.h"

namespace kvspan::cli {

// Fills weights and rates of a calibration whose fingerprint is known; false, and nothing changed,
// where it is not.
Result<bool> take_known_layer_weights(Calibration& calibration);

}  // namespace kvspan::cli
