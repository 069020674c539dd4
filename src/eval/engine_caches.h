// SPDX-License-Identifier: Apache-2.0
// The caches of a recipe for a model that is open: with its calibration where the recipe needs one.
#pragma once

#include <string_view>

#include "kvspan/cache.h"
#include "kvspan/result.h"
#include "model/engine.h"

namespace kvspan {

// Fails where the recipe does, and, saying which command makes it, where it needs a calibration
// that the user's cache folder does not hold.
Result<CacheFactory> engine_caches(const Engine& engine, std::string_view recipe);

}  // namespace kvspan
