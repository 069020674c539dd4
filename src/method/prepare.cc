// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string>
#include <utility>

#include "base/fail.h"
#include "method/policies/fixed_policy.h"
#include "method/prepare_parts.h"
#include "method/prepared.h"

namespace kvspan {
namespace detail {

PreparedGroup fixed_group(const RecipePart& method, const HeadRange& heads, std::int32_t unit,
                          SidePlan keys, SidePlan values) {
  auto plan = std::make_shared<CodingPlan>();
  plan->first_head = heads.first;
  plan->heads = heads.count;
  plan->recent = whole(method, "recent");
  plan->unit = unit;
  plan->keys = std::move(keys);
  plan->values = std::move(values);
  PreparedGroup group;
  group.options.first_head = heads.first;
  group.options.heads = heads.count;
  group.options.sink = whole(method, "sink");
  group.options.residuals = method.on("certify");
  group.codes = {plan->keys->start, plan->values->start};
  group.make_policy = [plan](const auto&) { return std::make_unique<FixedPolicy>(plan); };
  return group;
}

bool always(const RecipePart&) {
  return true;
}

bool calibrated_by_words(const RecipePart& part) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kWords{
      {{"first", "calibration"},
       {"tau", "calibrated"},
       {"tau_k", "calibrated"},
       {"tau_v", "calibrated"},
       {"ranks", "table"},
       {"gamma", "fit"},
       {"calib", "file"}}};
  for (const auto& [key, word] : kWords) {
    if (part.declares(key) && part.has(key) && part.is_word(key) && part.word(key) == word) {
      return true;
    }
  }
  return false;
}

}  // namespace detail

namespace {

// To the groups that a method prepared.
Status add_selector(const CacheShape& shape, const RecipePart& selector,
                    std::vector<PreparedLayer>& layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool reads_some = selector.method().tokens == TokenUse::kReadsSome;
    // All that a window or chunk shows is read.
    if (reads_some && (shape.layers[i].window > 0 || shape.layers[i].chunk > 0)) continue;
    if (reads_some && !shape.layers[i].alibi.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "{} chooses tokens by their keys alone, and in layer {} distance counts too "
                  "(alibi); allowed: layers without alibi",
                  selector.name(), i);
    }
    std::vector<PreparedGroup>& groups = layers[i].groups;
    // Heads choose their own tokens, unless the method codes them together.
    if (groups.size() == 1 && !groups[0].make_policy && shape.layers[i].kv_heads > 1) {
      const PreparedGroup all = groups[0];
      groups.assign(static_cast<std::size_t>(shape.layers[i].kv_heads), all);
      for (std::size_t h = 0; h < groups.size(); ++h) {
        groups[h].options.first_head = static_cast<std::int32_t>(h);
        groups[h].options.heads = 1;
      }
    }
    for (PreparedGroup& group : groups) {
      group.make_selector = selector.method().make_selector(selector, i);
    }
  }
  return {};
}

// The recipe whose method stores the tokens: its own, unless the selector brings one along.
Result<Recipe> storing_recipe(const CacheShape& shape, const Recipe& recipe) {
  const RecipePart* selector = recipe.selector();
  if (selector == nullptr || selector->method().stores_by == nullptr) return recipe;
  const std::string text = selector->method().stores_by(shape, *selector);
  if (text.empty()) return recipe;
  return Recipe::parse(text);
}

}  // namespace

bool needs_calibration(const Recipe& recipe) {
  const auto needs = recipe.method().method().needs_calibration;
  return needs != nullptr && needs(recipe.method());
}

Result<std::shared_ptr<const Prepared>> prepare(const CacheShape& shape, const Recipe& recipe,
                                                const Calibration* calibration) {
  auto prepared = std::make_shared<Prepared>();
  prepared->shape = shape;
  prepared->recipe = recipe.text();
  prepared->shared = std::make_shared<Ledger>();
  if (needs_calibration(recipe) && calibration == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                "{} needs a calibration of the model, and none was given", prepared->recipe);
  }
  // Methods may use what they do not need.
  if (calibration != nullptr) KVSPAN_CHECK_OK(check_calibration(shape, *calibration));
  if (const auto choose = recipe.method().method().choose) {
    KVSPAN_TRY(const std::string text, choose(shape, recipe.method(), *calibration));
    KVSPAN_TRY(const Recipe chosen, Recipe::parse(text));
    return prepare(shape, chosen, calibration);
  }
  KVSPAN_TRY(const Recipe stored, storing_recipe(shape, recipe));
  const RecipePart& method = stored.method();
  // Plans refer to the shape, so it is the one that stays.
  KVSPAN_TRY(prepared->layers,
             method.method().make({prepared->shape, method, calibration, prepared->shared}));
  if (const RecipePart* selector = recipe.selector()) {
    KVSPAN_CHECK_OK(add_selector(shape, *selector, prepared->layers));
  }
  return std::shared_ptr<const Prepared>(std::move(prepared));
}

}  // namespace kvspan
