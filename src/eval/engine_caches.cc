// SPDX-License-Identifier: Apache-2.0
#include "eval/engine_caches.h"

#include <optional>

#include "base/fail.h"
#include "kvspan/calibration.h"
#include "model/calibration_file.h"

namespace kvspan {

Result<CacheFactory> engine_caches(const Engine& engine, std::string_view recipe) {
  KVSPAN_TRY(const bool needed, needs_calibration(recipe));
  std::optional<Calibration> calibration;
  if (needed) {
    KVSPAN_TRY(calibration, find_calibration(engine));
    if (!calibration) {
      return fail(
          ErrorCode::kNotFound,
          "{} needs a calibration of {}, and none has been made; `kvspan calibrate` makes it",
          recipe, engine.info().name);
    }
  }
  return CacheFactory::create(engine.cache_shape(), recipe, calibration ? &*calibration : nullptr);
}

}  // namespace kvspan
