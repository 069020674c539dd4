// SPDX-License-Identifier: Apache-2.0
// Calibrations of several texts as if the texts had been one.
#pragma once

#include <span>

#include "kvspan/calibration.h"

namespace kvspan {

// Averages weighted by counted tokens; at least one calibration, all of one model and with counted
// tokens. Samples and residuals are those of the first.
Calibration pool_calibrations(std::span<const Calibration> parts);

}  // namespace kvspan
