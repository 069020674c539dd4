// SPDX-License-Identifier: Apache-2.0
// What -m means.
#pragma once

#include <string>

#include "kvspan/result.h"

namespace kvspan::cli {

// The file of a model named by -m. An unknown name is answered with the nearest known one.
Result<std::string> find_model_path(const std::string& name_or_path);

}  // namespace kvspan::cli
