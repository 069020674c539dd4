// SPDX-License-Identifier: Apache-2.0
#include "cuda/bands/device_recipe.h"

#include <utility>

#include "api/prepared_of.h"
#include "attention/bands/bands_tokens.h"
#include "base/fail.h"
#include "cuda/attend_constants.h"
#include "recipe/recipe.h"

namespace kvspan::cuda {
namespace {

struct Allowed {
  std::string_view key, words;
};
// What bands must have to be read by kernels; `|` between words.
constexpr Allowed kBandsWords[] = {{"share", "auto|kv|kvgroup"}, {"quantizer", "uniform"},
                                   {"rope", "anchor"},      {"calib", "file"},
                                   {"ends", "f16"},         {"certify", "off"}};

bool among(std::string_view word, std::string_view words) {
  for (const std::string& one : split_words(words)) {
    if (word == one) return true;
  }
  return false;
}

Status check_bands(const RecipePart& part) {
  for (const Allowed& allowed : kBandsWords) {
    if (among(part.word(allowed.key), allowed.words)) continue;
    return fail(ErrorCode::kUnsupported, "bands: {}={} is not on the device; allowed there: {}={}",
                allowed.key, part.word(allowed.key), allowed.key, allowed.words);
  }
  if (part.number("escape") > 0.0) {
    return fail(ErrorCode::kUnsupported,
                "bands: escape={} is not on the device; allowed there: escape=0",
                part.number("escape"));
  }
  if (part.count("layers") > 1) {
    return fail(ErrorCode::kUnsupported,
                "bands: layers={} is not on the device; allowed there: layers=1", part.count("layers"));
  }
  if (part.count("anchor") % (2 * kTurnStep) != 0) {
    return fail(ErrorCode::kUnsupported,
                "bands: anchor={} is not on the device; allowed there: multiples of {}",
                part.count("anchor"), 2 * kTurnStep);
  }
  return {};
}

Status check(const Recipe& recipe) {
  if (const RecipePart* selector = recipe.selector()) {
    return fail(ErrorCode::kUnsupported,
                "selectors are not on the device: {}; allowed there: full and bands alone",
                selector->name());
  }
  const RecipePart& method = recipe.method();
  if (method.name() == "bands") return check_bands(method);
  if (method.name() == "full" && method.word("store") == "f16") return {};
  return fail(ErrorCode::kUnsupported,
              "{} is not on the device; allowed there: full (store=f16) and bands", method.text());
}

// Kinds of attention that no kernel computes.
Status check(const CacheShape& shape) {
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    const LayerShape& layer = shape.layers[i];
    const char* const kind = !layer.alibi.empty()   ? "ALiBi"
                             : !layer.sinks.empty() ? "attention sinks"
                             : layer.chunk > 0      ? "attention in chunks"
                                                    : nullptr;
    if (kind == nullptr) continue;
    return fail(ErrorCode::kUnsupported,
                "layer {}: {} is not on the device; allowed there: causal attention, windows and "
                "soft caps",
                i, kind);
  }
  return {};
}

}  // namespace

Result<DeviceRecipe> device_recipe(const CacheShape& shape, std::string_view recipe,
                                   const Calibration* calibration) {
  KVSPAN_TRY(const Recipe parsed, Recipe::parse(recipe));
  KVSPAN_CHECK_OK(check(parsed));
  // Checks the shape too.
  KVSPAN_TRY(const CacheFactory factory, CacheFactory::create(shape, recipe, calibration));
  return device_recipe(prepared_of(factory));
}

Result<DeviceRecipe> device_recipe(std::shared_ptr<const Prepared> ready) {
  const Prepared& prepared = *ready;
  KVSPAN_TRY(const Recipe parsed, Recipe::parse(prepared.recipe));
  KVSPAN_CHECK_OK(check(parsed));
  KVSPAN_CHECK_OK(check(prepared.shape));
  DeviceRecipe made;
  made.text = prepared.recipe;
  made.prepared = std::move(ready);
  made.codes.resize(prepared.shape.layers.size());
  if (parsed.method().name() != "bands") return made;
  made.recent = static_cast<std::int32_t>(parsed.method().count("recent"));
  for (std::size_t l = 0; l < prepared.layers.size(); ++l) {
    for (const PreparedGroup& group : prepared.layers[l].groups) {
      made.sink = group.options.sink;
      // The store, which is bands' own for this method, is only a way to the code.
      const auto store = group.make_store(prepared.shared);
      made.codes[l].push_back(static_cast<const BandsTokens&>(*store).keys().shared_code());
    }
  }
  return made;
}

}  // namespace kvspan::cuda
