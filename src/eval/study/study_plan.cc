// SPDX-License-Identifier: Apache-2.0
#include "eval/study/study_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace kvspan {
namespace {

using UnitKind = StudyUnit::Kind;

constexpr std::array kGroups{
    StudyGroup{
        "noise", "What any change costs",
        "the same rows in f32: with quantized weights activations are rounded to 8 bits, and "
        "this much KL is none of the cache's"},
    StudyGroup{"rank", "Ranks of d/4 and below", "F1; coefficients in f16"},
    StudyGroup{
        "equal_bytes", "Methods on equal bytes",
        "F2; ranks and bits fitted so that all bytes at a window's end are on common levels"},
    StudyGroup{"length", "Error by position", "F3; ranks of d/2"},
    StudyGroup{"gamma", "Scale of projected logits", "1, sqrt(r/d) and least squares"},
    StudyGroup{"stale", "Coefficients under an older basis (oja)",
               "kept, mapped, or read as they are"},
    StudyGroup{"ablation_chunk", "Longest and shortest segment (fd)", ""},
    StudyGroup{"ablation_tau", "Residual that begins a segment (fd)", ""},
    StudyGroup{"ablation_sketch", "Rows of the sketch (fd)", ""},
    StudyGroup{"ablation_warm", "Warm start and look-ahead (fd)", ""},
    StudyGroup{"ablation_update", "How often directions are learned (fd, rotate)", ""},
    StudyGroup{"ablation_ends", "First and last tokens at full rank (static)", ""},
    StudyGroup{"ablation_eta", "Step size (oja)", ""},
    StudyGroup{"ablation_importance",
               "Tokens that drive the step (oja), weights of the SVD (spectral)", ""},
};

// One variant: keys that are added to a base recipe. Those of a quick study come first.
struct Variant {
  std::string_view group, label, base, keys;
  bool quick;
};

// Bases are named by what the recipes of `rank` are, so that a variant that changes nothing is
// measured once.
constexpr std::array kVariants{
    Variant{"gamma", "gamma=1", "static", "", true},
    Variant{"gamma", "gamma=sqrt", "static", "gamma=sqrt", true},
    Variant{"gamma", "gamma=fit", "static", "gamma=fit", true},
    Variant{"stale", "stale=segment", "oja", "", true},
    Variant{"stale", "stale=rotate", "oja", "stale=rotate", true},
    Variant{"stale", "stale=reuse", "oja", "stale=reuse", true},
    Variant{"ablation_chunk", "64 to 256", "fd", "", true},
    Variant{"ablation_chunk", "128", "fd", "chunk=128,min_chunk=128", true},
    Variant{"ablation_chunk", "256", "fd", "min_chunk=256", false},
    Variant{"ablation_chunk", "512", "fd", "chunk=512,min_chunk=512", true},
    Variant{"ablation_tau", "calibrated", "fd", "", true},
    Variant{"ablation_tau", "tau=0.15", "fd", "tau=0.15", false},
    Variant{"ablation_tau", "tau=0.3", "fd", "tau=0.3", true},
    Variant{"ablation_tau", "tau=0.6", "fd", "tau=0.6", false},
    Variant{"ablation_sketch", "2r", "fd", "", true},
    Variant{"ablation_sketch", "4r", "fd", "sketch=4r", true},
    Variant{"ablation_sketch", "8r", "fd", "sketch=8r", false},
    Variant{"ablation_warm", "none", "fd", "", true},
    Variant{"ablation_warm", "warm=256", "fd", "warm=256", true},
    Variant{"ablation_warm", "lookahead=64", "fd", "lookahead=64", false},
    Variant{"ablation_update", "every token", "fd", "", true},
    Variant{"ablation_update", "batches of 8", "fd", "update=batch", false},
    Variant{"ablation_update", "one in 8", "fd", "update=subsample", true},
    Variant{"ablation_update", "rotate every 64", "rotate", "", true},
    Variant{"ablation_update", "rotate every 16", "rotate", "every=16", false},
    Variant{"ablation_update", "rotate every 256", "rotate", "every=256", false},
    Variant{"ablation_ends", "as elsewhere", "static", "", true},
    Variant{"ablation_ends", "none", "bare static", "sink=0,recent=0", true},
    Variant{"ablation_ends", "sink alone", "bare static", "sink=32,recent=0", false},
    Variant{"ablation_ends", "sink=128, recent=512", "bare static", "sink=128,recent=512", false},
    Variant{"ablation_eta", "eta=0.05", "oja", "", true},
    Variant{"ablation_eta", "a fifth", "oja", "eta_prefill=0.02,eta=0.01", false},
    Variant{"ablation_eta", "four times", "oja", "eta_prefill=0.4,eta=0.2", true},
    Variant{"ablation_importance", "oja, top 5 %", "oja", "", true},
    Variant{"ablation_importance", "oja, all tokens", "oja", "top=100%", true},
    Variant{"ablation_importance", "oja, top 20 %", "oja", "top=20%", false},
    Variant{"ablation_importance", "spectral", "spectral", "", true},
    Variant{"ablation_importance", "spectral, by attention", "spectral", "weight=attention", false},
};

// Families on equal bytes; the last are only in a full study.
constexpr std::array<std::string_view, 7> kFamilies{"static", "fd",    "rotate",  "oja",
                                                    "bands",  "quant", "spectral"};

std::string ends_of(const StudyOptions& o) {
  return fmt::format("sink={},recent={}", o.sink, o.recent);
}

// What is always said of a family, beside its ranks and ends.
std::string keys_of(std::string_view family, const StudyOptions& o) {
  if (family != "spectral") return "";
  return fmt::format(",store=f16,block={}", std::max(64, o.context / 8 / 64 * 64));
}

std::string at_rank(std::string_view family, std::string_view rank, const StudyOptions& o,
                    std::string_view more = "") {
  const bool bare = family.starts_with("bare ");
  if (bare) family.remove_prefix(5);
  std::string out = fmt::format("{}:rk={},rv={}{}", family, rank, rank, keys_of(family, o));
  if (!bare) out += fmt::format(",{}", ends_of(o));
  if (!more.empty()) out += fmt::format(",{}", more);
  return out;
}

PlannedRecipe planned(std::string_view group, std::string_view label, std::string recipe) {
  return {std::string(group), std::string(label), std::move(recipe), "", std::nullopt};
}

StudyUnit rank_unit(const StudyOptions& o) {
  StudyUnit unit{"rank", UnitKind::kPerplexity, {planned("noise", "rows in f32", "full:store=f32")}};
  const auto add = [&](std::string_view family, std::string_view rank, std::string_view keys) {
    std::string label = fmt::format("r={}", rank);
    if (!keys.empty()) label += fmt::format(", {}", keys);
    unit.recipes.push_back(planned("rank", label, at_rank(family, rank, o, keys)));
  };
  for (const std::string_view family : {"static", "fd", "rotate", "oja", "spectral"}) {
    add(family, "d/4", "");
    if (family == "static" || !o.quick) add(family, "d/8", "");
    if (family == "static" || family == "fd" || !o.quick) add(family, "d/4", "rope=pre");
    if (family == "static" || !o.quick) add(family, "d/4", "rope=anchor");
  }
  if (!o.quick) {
    for (const std::string_view keys :
         {"basis=qk", "basis=attn", "ranks=table", "rope=pre,ranks=table"}) {
      add("static", "d/4", keys);
    }
  }
  return unit;
}

StudyUnit length_unit(const StudyOptions& o) {
  StudyUnit unit{"length", UnitKind::kByPosition, {}};
  for (const std::string_view family : {"fd", "oja", "spectral", "rotate", "static"}) {
    if (o.quick && family == "rotate") continue;
    unit.recipes.push_back(planned("length", family, at_rank(family, "d/2", o)));
  }
  unit.recipes.push_back(planned("length", "quant", fmt::format("quant:bits=4,{}", ends_of(o))));
  return unit;
}

StudyUnit level_unit(std::size_t index, const StudyOptions& o) {
  const double level = o.levels[index];
  StudyUnit unit{fmt::format("equal_bytes_{}", index + 1), UnitKind::kPerplexity, {}};
  for (const std::string_view family : kFamilies) {
    if (o.quick && family == "spectral") continue;
    unit.recipes.push_back({"equal_bytes", "", "", std::string(family), level});
  }
  return unit;
}

// Quick: all in one unit, so that the full cache reads the text once for them.
void add_variants(const StudyOptions& o, std::vector<StudyUnit>& to) {
  for (const Variant& variant : kVariants) {
    if (o.quick && !variant.quick) continue;
    const std::string name = o.quick ? "variants" : std::string(variant.group);
    if (to.empty() || to.back().name != name) to.push_back({name, UnitKind::kPerplexity, {}});
    to.back().recipes.push_back(
        planned(variant.group, variant.label, at_rank(variant.base, "d/4", o, variant.keys)));
  }
}

}  // namespace

StudyOptions study_options(bool quick, std::int32_t model_context) {
  StudyOptions out;
  out.quick = quick;
  out.context = std::min(quick ? 768 : 4096, model_context / 64 * 64);
  out.windows = quick ? 1 : 4;
  // Together a multiple of the units of 32 and 64 tokens that oja and rotate code at once, as the
  // blocks are: none of them then has tokens waiting at full rank that static has not.
  out.sink = quick ? 8 : 64;
  out.recent = quick ? 56 : 128;
  out.levels = quick ? std::vector{3.0, 5.0, 8.0} : std::vector{2.0, 3.0, 4.0, 6.0, 8.0, 10.0};
  out.tracked_tokens = std::min(out.context, quick ? 768 : 2048);
  return out;
}

std::vector<StudyUnit> study_plan(const StudyOptions& options) {
  std::vector<StudyUnit> plan{rank_unit(options), length_unit(options)};
  for (std::size_t i = 0; i < options.levels.size(); ++i) plan.push_back(level_unit(i, options));
  StudyUnit tracked{"bounds", UnitKind::kTracked, {}};
  for (const std::string_view family : {"static", "fd", "oja", "spectral"}) {
    if (options.quick && (family == "oja" || family == "spectral")) continue;
    tracked.recipes.push_back(
        planned("bounds", family, at_rank(family, "d/4", options, "certify=on")));
  }
  plan.push_back(std::move(tracked));
  add_variants(options, plan);
  return plan;
}

std::size_t tokens_of(const StudyUnit& unit, const StudyOptions& options,
                      std::set<std::string>& read) {
  if (unit.kind == UnitKind::kTracked) {
    return unit.recipes.size() * static_cast<std::size_t>(options.tracked_tokens);
  }
  std::size_t passes = 1;
  for (const PlannedRecipe& planned : unit.recipes) {
    // Levels are not known yet: each may be a recipe of its own.
    const bool known = !planned.recipe.empty() && !read.insert(planned.recipe).second;
    passes += !known || unit.kind == UnitKind::kByPosition;
  }
  return passes * static_cast<std::size_t>(options.windows) *
         static_cast<std::size_t>(options.context);
}

std::size_t fitting_tokens(const StudyOptions& options) {
  return static_cast<std::size_t>(options.context);
}

std::span<const StudyGroup> study_groups() noexcept {
  return kGroups;
}

std::string family_recipe(std::string_view family, const StudyOptions& options) {
  // Segments of one length: every new basis costs bytes, and here bytes are what counts.
  const std::string_view more = family == "fd" ? ",chunk=256,min_chunk=256" : "";
  return fmt::format("{}:{}{}{}", family, ends_of(options), keys_of(family, options), more);
}

}  // namespace kvspan
