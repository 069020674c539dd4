// SPDX-License-Identifier: Apache-2.0
// The fingerprint of a model file that need not be loaded (model/fingerprint.h).
#pragma once

#include <string>

#include "kvspan/result.h"

namespace kvspan {

// Fails where the file is not there or no GGUF file.
Result<std::string> file_fingerprint(const std::string& path);

}  // namespace kvspan
