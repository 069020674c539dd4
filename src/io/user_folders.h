// SPDX-License-Identifier: Apache-2.0
// Where kvspan keeps what it can make or fetch again (models, calibration, built dependencies).
#pragma once

#include <string>

#include "kvspan/result.h"

namespace kvspan {

// $XDG_CACHE_HOME/kvspan, or ~/.cache/kvspan where that variable is unset or not absolute (XDG base
// directory specification 0.8). Not created. Fails with kNotFound when HOME is unset too.
Result<std::string> user_cache_folder();

// Creates the folder and those above it; succeeds when it is there already.
Status make_folders(const std::string& path);

}  // namespace kvspan
