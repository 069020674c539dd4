// SPDX-License-Identifier: Apache-2.0
#include "eval/engine_caches.h"

#include <optional>

#include "base/fail.h"
#include "kvspan/calibration.h"
#include "llama/calibration_file.h"
#include "recipe/recipe.h"

namespace kvspan {

namespace {

// auto:budget without ctx, for the model's whole context.
Result<Recipe> for_context(const Engine& engine, std::string_view recipe) {
  KVSPAN_TRY(Recipe parsed, Recipe::parse(recipe));
  const RecipePart& method = parsed.method();
  if (method.method().kind != MethodKind::kChooser || !method.has("budget") || method.has("ctx"))
    return parsed;
  return Recipe::parse(fmt::format("{},ctx={}", parsed.text(), engine.info().context));
}

}  // namespace

Result<CacheFactory> engine_caches(const Engine& engine, std::string_view recipe,
                                   const Calibration* calibration) {
  KVSPAN_TRY(const Recipe whole, for_context(engine, recipe));
  return CacheFactory::create(engine.cache_shape(), whole.text(), calibration);
}

Result<std::optional<Choice>> engine_choice(const Engine& engine, std::string_view recipe,
                                            const Calibration& calibration) {
  KVSPAN_TRY(const Recipe whole, for_context(engine, recipe));
  if (whole.method().method().kind != MethodKind::kChooser) return std::optional<Choice>();
  KVSPAN_TRY(Choice choice, choose_recipe(engine.cache_shape(), whole.method(), calibration));
  return std::optional<Choice>(std::move(choice));
}

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
  return engine_caches(engine, recipe, calibration ? &*calibration : nullptr);
}

}  // namespace kvspan
