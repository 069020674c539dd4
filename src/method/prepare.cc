// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "base/byte_frame.h"
#include "base/fail.h"
#include "cache/calibration/rope_order.h"
#include "method/policies/fixed_policy.h"
#include "method/prepare_parts.h"
#include "method/prepared.h"
#include "method/shape_fields.h"

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
    if (layers[i].layers_led > 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "{} chooses tokens layer by layer; allowed with it: layers=1, each layer coded alone",
                  selector.name());
    }
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

namespace {

Result<std::shared_ptr<Prepared>> prepare_with(const CacheShape& shape, const Recipe& recipe,
                                               const Calibration* calibration, Designs& designs) {
  if (const auto choose = recipe.method().method().choose) {
    KVSPAN_TRY(const std::string text,
               designs.text([&] { return choose(shape, recipe.method(), *calibration); }));
    KVSPAN_TRY(const Recipe chosen, Recipe::parse(text));
    if (chosen.method().method().choose != nullptr) {
      return fail(ErrorCode::kCorruptData, "{} chose {}, which chooses again", recipe.text(), text);
    }
    return prepare_with(shape, chosen, calibration, designs);
  }
  auto prepared = std::make_shared<Prepared>();
  prepared->shape = shape;
  prepared->recipe = recipe.text();
  prepared->shared = std::make_shared<Ledger>();
  KVSPAN_TRY(const Recipe stored, storing_recipe(shape, recipe));
  const RecipePart& method = stored.method();
  // Plans refer to the shape, so it is the one that stays.
  KVSPAN_TRY(prepared->layers, method.method().make({prepared->shape, method, calibration,
                                                     prepared->shared, designs}));
  if (const RecipePart* selector = recipe.selector()) {
    KVSPAN_CHECK_OK(add_selector(shape, *selector, prepared->layers));
  }
  return prepared;
}

constexpr FrameFormat kCodesFormat{"codes", "KVSPCODE", 1};
// Goes up whenever a calibration gives other codes than before, so that old ones are made anew.
constexpr std::uint32_t kDesignVersion = 2;
constexpr std::size_t kLongestCodesRecipe = 4096;

}  // namespace

Result<std::shared_ptr<const Prepared>> prepare(const CacheShape& shape, const Recipe& recipe,
                                                const Calibration* calibration,
                                                const DesignProgress& progress) {
  if (needs_calibration(recipe) && calibration == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                "{} needs a calibration of the model, and none was given", recipe.text());
  }
  // Methods may use what they do not need.
  std::optional<Calibration> in_order;
  if (calibration != nullptr) {
    KVSPAN_CHECK_OK(check_calibration(shape, *calibration));
    KVSPAN_TRY(in_order, in_rope_order(shape, *calibration));
    if (in_order) calibration = &*in_order;
  }
  Designs designs(nullptr, progress);
  KVSPAN_TRY(const auto prepared, prepare_with(shape, recipe, calibration, designs));
  prepared->asked = recipe.text();
  prepared->designs = designs.take_notes();
  if (calibration != nullptr) prepared->calibration_checksum = calibration->checksum;
  return std::shared_ptr<const Prepared>(prepared);
}

Result<std::vector<std::byte>> save_designs(const Prepared& prepared) {
  ByteWriter out;
  begin_frame(kCodesFormat, kDesignVersion, out);
  out.put_text(prepared.asked);
  put_shape(prepared.shape, out);
  out.put(prepared.calibration_checksum);
  for (const auto& write : prepared.designs) write(out);
  end_frame(out);
  return std::move(out.bytes());
}

Result<std::shared_ptr<const Prepared>> prepare_saved(const CacheShape& shape, const Recipe& recipe,
                                                      std::span<const std::byte> bytes) {
  KVSPAN_TRY(OpenFrame frame, open_frame(kCodesFormat, bytes));
  if (frame.kind != kDesignVersion) {
    return fail(ErrorCode::kUnsupported,
                "codes: kind at byte 12 is {}; this kvspan designs codes of kind {}", frame.kind,
                kDesignVersion);
  }
  ByteReader& in = frame.payload;
  KVSPAN_TRY(const std::string asked, in.get_text("recipe", kLongestCodesRecipe));
  if (asked != recipe.text()) {
    return fail(ErrorCode::kInvalidArgument, "codes of the recipe {}; allowed: {}", asked,
                recipe.text());
  }
  if (Status same = expect_shape(shape, in); !same) {
    return fail(ErrorCode::kInvalidArgument, "{}", same.error().message);
  }
  KVSPAN_TRY(const auto checksum, in.get<std::uint64_t>("checksum of the calibration"));
  Designs designs(&in);
  KVSPAN_TRY(const auto prepared, prepare_with(shape, recipe, nullptr, designs));
  KVSPAN_CHECK_OK(in.expect_left("end", 0));
  prepared->asked = recipe.text();
  prepared->designs = designs.take_notes();
  prepared->calibration_checksum = checksum;
  return std::shared_ptr<const Prepared>(prepared);
}

}  // namespace kvspan
