// SPDX-License-Identifier: Apache-2.0
// The calibration that recipes need, made with a progress bar when there is none yet.
#pragma once

#include <string>

#include "eval/calibrate.h"

namespace kvspan::cli {

// The text a calibration is made from: `file`, or the one that comes with kvspan.
Result<std::string> calibration_text(const std::string& file = "");

// ensure_calibration with that text; a line on standard error says what is being made and why.
Result<Calibration> calibration_for(Engine& engine);

}  // namespace kvspan::cli
