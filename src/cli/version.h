// SPDX-License-Identifier: Apache-2.0
// What `kvspan --version` prints.
#pragma once

#include <string>

namespace kvspan::cli {

// "0.1.0"
std::string version_number();
// Several lines: version and commit, the archive that ggml and libllama come from, the CPU level.
std::string version_text();

}  // namespace kvspan::cli
