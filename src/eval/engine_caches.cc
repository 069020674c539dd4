// SPDX-License-Identifier: Apache-2.0
#include "eval/engine_caches.h"

#include <optional>

#include "base/fail.h"
#include "eval/kept_codes.h"
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
                                   const Calibration* calibration, const DesignProgress& progress) {
  KVSPAN_TRY(const Recipe whole, for_context(engine, recipe));
  KVSPAN_TRY(const CacheFactory caches,
             CacheFactory::create(engine.cache_shape(), whole.text(), calibration, progress));
  return engine.place(caches);
}

Result<std::optional<CacheFactory>> kept_caches(const Engine& engine, std::string_view recipe,
                                                std::string& problem) {
  KVSPAN_TRY(const Recipe whole, for_context(engine, recipe));
  KVSPAN_TRY(const std::string path, calibration_path(engine));
  const auto checksum = file_calibration_checksum(path);
  if (!checksum) return std::optional<CacheFactory>();
  KVSPAN_TRY(const KeptCodes kept,
             KeptCodes::find(engine.fingerprint(), engine.cache_shape(), whole.text(), *checksum));
  if (!kept.problem().empty()) problem = kept.problem();
  if (!kept.caches()) return std::optional<CacheFactory>();
  return std::optional<CacheFactory>(engine.place(*kept.caches()));
}

Status keep_codes(const Engine& engine, std::string_view recipe, const CacheFactory& caches) {
  KVSPAN_TRY(const Recipe whole, for_context(engine, recipe));
  return KeptCodes::keep(engine.fingerprint(), whole.text(), caches);
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
  if (!needed) return engine_caches(engine, recipe, nullptr);
  std::string problem;
  KVSPAN_TRY(auto kept, kept_caches(engine, recipe, problem));
  if (kept) return *std::move(kept);
  KVSPAN_TRY(const auto calibration, find_calibration(engine));
  if (!calibration) {
    return fail(ErrorCode::kNotFound,
                "{} needs a calibration of {}, and none has been made; `kvspan calibrate` makes it",
                recipe, engine.info().name);
  }
  KVSPAN_TRY(const CacheFactory caches, engine_caches(engine, recipe, &*calibration));
  (void)keep_codes(engine, recipe, caches);  // those at hand are as good
  return caches;
}

}  // namespace kvspan
