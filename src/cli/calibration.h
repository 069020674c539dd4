// SPDX-License-Identifier: Apache-2.0
// The calibration that recipes need, made with a progress bar when there is none yet.
#pragma once

#include <memory>
#include <string>

#include "eval/calibrate/calibrate.h"
#include "kvspan/cache.h"

namespace kvspan::cli {

// The text a calibration is made from: `file`, or the one that comes with kvspan.
Result<std::string> calibration_text(const std::string& file = "");

// ensure_calibration with that text; a line on standard error says what is being made and why.
Result<Calibration> calibration_for(Engine& engine);

// Measures what errors of each layer cost and what `bands` costs by its bits (eval/calibrate/layer_weights.h,
// eval/study/rate_curve.h), with the model's weights as f16, on parts of `text`, under progress bars.
// Says beforehand on standard error how long it will take.
Status measure_costs(const std::string& model_path, const EngineOptions& options,
                     const std::string& text, Calibration& calibration);

// "kvspan: RECIPE: code ..." on standard error: which code the cache uses and where that comes
// from; nothing where that is what was said last of it, or it has none.
class CodeNote {
 public:
  // The line, or "".
  std::string line(const KvCache& cache);

 private:
  std::string last_;
};

// The caches of a recipe: with codes that are kept from an earlier start; else they are designed
// under a progress bar, and kept, from the calibration, which is made first if there is none. What
// auto chose is said on standard error.
Result<CacheFactory> caches_for(Engine& engine, const std::string& recipe);
// An empty one of these.
Result<std::unique_ptr<KvCache>> new_cache(Engine& engine, const std::string& recipe);

}  // namespace kvspan::cli
