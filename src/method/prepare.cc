// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>

#include "base/fail.h"
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

}  // namespace

bool needs_calibration(const Recipe& recipe) {
  const RecipePart& method = recipe.method();
  const auto is = [&](std::string_view key, std::string_view word) {
    return method.declares(key) && method.has(key) && method.is_word(key) &&
           method.word(key) == word;
  };
  if (method.name() == "static" || method.name() == "oja") return true;
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
  const RecipePart& method = recipe.method();
  for (const auto& [name, family] : kFamilies) {
    if (name != method.name()) continue;
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
