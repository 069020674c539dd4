// SPDX-License-Identifier: Apache-2.0
// Files that come with kvspan: demo text, small models, scripts.
#pragma once

#include <string>

#include "kvspan/result.h"

namespace kvspan::cli {

// The folder of the source tree's data/: $KVSPAN_DATA, else beside an installed program
// (../share/kvspan), else the tree it was built from. Fails with kNotFound.
Result<std::string> data_folder();

// The path of a file of scripts/, installed or in the source tree.
Result<std::string> script_path(const std::string& name);

}  // namespace kvspan::cli
