// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include "base/fail.h"
#include "method/bands/choose_recipe.h"
#include "method/prepare_parts.h"
#include "method/prepared.h"

namespace kvspan {
namespace {

using Family = detail::PreparedLayers (*)(const detail::PrepareInput&);

constexpr std::array<std::pair<std::string_view, Family>, 11> kFamilies{{
    {"bands", detail::prepare_bands},
    {"full", detail::prepare_full},
    {"quant", detail::prepare_quant},
    {"static", detail::prepare_subspace},
    {"fd", detail::prepare_subspace},
    {"rotate", detail::prepare_subspace},
    {"oja", detail::prepare_subspace},
    {"spectral", detail::prepare_subspace},
    {"prune", detail::prepare_tokens},
    {"window", detail::prepare_tokens},
    {"streaming", detail::prepare_tokens},
}};

// The recipe whose method stores the tokens: its own, unless shadowkv brings one along. That keeps
// the leading directions of the keys of all heads together, before RoPE, block by block, and values
// as they are.
Result<Recipe> storing_recipe(const CacheShape& shape, const Recipe& recipe) {
  const RecipePart* selector = recipe.selector();
  if (selector == nullptr || selector->name() != "shadowkv" || !selector->given("rank")) {
    return recipe;
  }
  const LayerShape& layer = shape.layers.front();
  const std::int32_t width = layer.kv_heads * layer.key_dim;
  const std::optional<std::int32_t> rank = selector->rank("rank").resolve(width);
  if (!rank) return recipe;  // all of them
  return Recipe::parse(fmt::format(
      "spectral:rk={:.9f},rv=full,block=256,rope=pre,share=layer,store=f16,recent={}",
      static_cast<double>(std::clamp(*rank, 1, width)) / width, selector->count("recent")));
}

}  // namespace

bool needs_calibration(const Recipe& recipe) {
  const RecipePart& method = recipe.method();
  const auto is = [&](std::string_view key, std::string_view word) {
    return method.declares(key) && method.has(key) && method.is_word(key) &&
           method.word(key) == word;
  };
  if (method.name() == "static" || method.name() == "oja" || method.name() == "auto") return true;
  return is("first", "calibration") || is("tau", "calibrated") || is("tau_k", "calibrated") ||
         is("tau_v", "calibrated") || is("ranks", "table") || is("gamma", "fit") ||
         is("calib", "file");
}

Result<std::shared_ptr<const Prepared>> prepare(const CacheShape& shape, const Recipe& recipe,
                                                const Calibration* calibration) {
  auto prepared = std::make_shared<Prepared>();
  prepared->shape = shape;
  prepared->recipe = recipe.text();
  prepared->shared = std::make_shared<Ledger>();
  if (needs_calibration(recipe)) {
    if (calibration == nullptr) {
      return fail(ErrorCode::kInvalidArgument,
                  "{} needs a calibration of the model, and none was given", prepared->recipe);
    }
  }
  // Methods may use what they do not need.
  if (calibration != nullptr) KVSPAN_CHECK_OK(check_calibration(shape, *calibration));
  if (recipe.method().name() == "auto") {
    KVSPAN_TRY(const Choice choice, choose_recipe(shape, recipe.method(), *calibration));
    KVSPAN_TRY(const Recipe chosen, Recipe::parse(choice.recipe));
    return prepare(shape, chosen, calibration);
  }
  KVSPAN_TRY(const Recipe stored, storing_recipe(shape, recipe));
  const RecipePart& method = stored.method();
  for (const auto& [name, family] : kFamilies) {
    if (name != method.name()) continue;
    Calibration whole;  // others take one layer at a time, or nothing of it
    if (calibration != nullptr && calibration->read_layer && family == detail::prepare_subspace) {
      KVSPAN_TRY(whole, read_whole(shape, *calibration));
      calibration = &whole;
    }
    KVSPAN_TRY(prepared->layers, family({shape, method, calibration, prepared->shared}));
    if (const RecipePart* selector = recipe.selector()) {
      KVSPAN_CHECK_OK(detail::add_selector(shape, *selector, prepared->layers));
    }
    return std::shared_ptr<const Prepared>(std::move(prepared));
  }
  return fail(ErrorCode::kInvalidArgument, "{}: this method cannot be made into a cache",
              prepared->recipe);
}

}  // namespace kvspan
