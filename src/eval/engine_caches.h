// SPDX-License-Identifier: Apache-2.0
// The caches of a recipe for a model that is open: with its calibration where the recipe needs one,
// and on the engine's device where that is possible (Engine::place).
#pragma once

#include <optional>
#include <string_view>

#include "kvspan/cache.h"
#include "kvspan/calibration.h"
#include "kvspan/result.h"
#include "llama/engine.h"
#include "method/bands/choose_recipe.h"

namespace kvspan {

// With codes that are kept, or with the calibration, and then the codes are kept. Fails where the
// recipe does, and, saying which command makes it, where it needs a calibration that the user's
// cache folder does not hold.
Result<CacheFactory> engine_caches(const Engine& engine, std::string_view recipe);

// Where a recipe needs a calibration: caches with codes that are kept, or none. `problem` says what
// is wrong with a file that cannot be used; else it is left alone.
Result<std::optional<CacheFactory>> kept_caches(const Engine& engine, std::string_view recipe,
                                                std::string& problem);
// Keeps the codes that were designed from the calibration in the user's cache folder.
Status keep_codes(const Engine& engine, std::string_view recipe, const CacheFactory& caches);

// The same with the calibration at hand; null where there is none. A budget without a number of
// tokens is for the model's whole context.
Result<CacheFactory> engine_caches(const Engine& engine, std::string_view recipe,
                                   const Calibration* calibration,
                                   const DesignProgress& progress = nullptr);

// What `recipe` makes of its budget or quality; none where it is not auto.
Result<std::optional<Choice>> engine_choice(const Engine& engine, std::string_view recipe,
                                            const Calibration& calibration);

}  // namespace kvspan
