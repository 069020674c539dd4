// SPDX-License-Identifier: Apache-2.0
// The caches of a recipe for a model that is open: with its calibration where the recipe needs one.
#pragma once

#include <optional>
#include <string_view>

#include "kvspan/cache.h"
#include "kvspan/calibration.h"
#include "kvspan/result.h"
#include "llama/engine.h"
#include "method/bands/choose_recipe.h"

namespace kvspan {

// Fails where the recipe does, and, saying which command makes it, where it needs a calibration
// that the user's cache folder does not hold.
Result<CacheFactory> engine_caches(const Engine& engine, std::string_view recipe);

// The same with the calibration at hand; null where there is none. A budget without a number of
// tokens is for the model's whole context.
Result<CacheFactory> engine_caches(const Engine& engine, std::string_view recipe,
                                   const Calibration* calibration);

// What `recipe` makes of its budget or quality; none where it is not auto.
Result<std::optional<Choice>> engine_choice(const Engine& engine, std::string_view recipe,
                                            const Calibration& calibration);

}  // namespace kvspan
