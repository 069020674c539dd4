// SPDX-License-Identifier: Apache-2.0
#include "eval/study/study_measure.h"

#include <algorithm>
#include <map>

#include "base/fail.h"
#include "eval/equal_bytes/fit_bytes.h"
#include "recipe/recipe.h"

namespace kvspan {
namespace {

constexpr int kBuckets = 8;
// What is compared are the bytes measured, between those of static: a level need only be near, and
// a try can cost seconds.
constexpr FitOptions kLevelFit{.near = 0.03, .most_off = 0.35, .over = true, .spend_rest = false};

// Canonical; as it is where it does not parse.
std::string canonical(const std::string& recipe) {
  const auto parsed = Recipe::parse(recipe);
  return parsed ? parsed->text() : recipe;
}

StudyRow row_of(const PlannedRecipe& planned, std::int32_t head_dim) {
  StudyRow row;
  row.group = planned.group;
  row.label = planned.label;
  row.level = planned.level;
  row.measured.recipe = canonical(planned.recipe);
  row.family = planned.family;
  describe(row, head_dim);
  return row;
}

// What a unit measures in one pass, and where it goes.
struct Pass {
  std::vector<std::string> recipes;  // canonical
  std::vector<StudyRow> rows;
  std::map<std::size_t, std::size_t> recipe_of_row;  // of rows that are measured now
};

Pass prepare(const StudyUnit& unit, std::int32_t head_dim, const CacheSource& source,
             std::span<const StudyRow> known) {
  Pass pass;
  for (const PlannedRecipe& planned : unit.recipes) {
    StudyRow row = row_of(planned, head_dim);
    const auto same = [&](const StudyRow& other) {
      return other.measured.recipe == row.measured.recipe && other.measured_well();
    };
    const auto found = std::find_if(known.begin(), known.end(), same);
    const auto twice = std::find(pass.recipes.begin(), pass.recipes.end(), row.measured.recipe);
    if (planned.recipe.empty()) {
      row.measured.failed = planned.label;
      row.measured.recipe = planned.family;
      row.label.clear();
    } else if (unit.kind != StudyUnit::Kind::kByPosition && found != known.end()) {
      row.measured = found->measured;
      row.measured.by_position.clear();
    } else if (twice != pass.recipes.end()) {
      pass.recipe_of_row[pass.rows.size()] = static_cast<std::size_t>(twice - pass.recipes.begin());
    } else if (const auto made = source(planned.recipe); !made) {
      row.measured.failed = made.error().message;
    } else {
      pass.recipe_of_row[pass.rows.size()] = pass.recipes.size();
      pass.recipes.push_back(row.measured.recipe);
    }
    pass.rows.push_back(std::move(row));
  }
  return pass;
}

std::vector<StudyRow> with_reference(std::vector<StudyRow> rows, const PerplexityRow& full) {
  std::vector<StudyRow> out;
  for (StudyRow& row : rows) {
    const auto same_group = [&](const StudyRow& other) { return other.group == row.group; };
    if (std::none_of(out.begin(), out.end(), same_group)) {
      out.push_back({row.group, "", "full", std::nullopt, std::nullopt, full});
    }
    out.push_back(std::move(row));
  }
  return out;
}

Result<std::optional<StudyData>> track(Engine& engine, const StudyUnit& unit,
                                       const StudyOptions& options, std::span<const Token> window,
                                       const CacheSource& source,
                                       const std::function<void(std::size_t)>& progress) {
  StudyData out;
  const auto tokens = std::min(static_cast<std::size_t>(options.tracked_tokens), window.size());
  const auto block = static_cast<std::size_t>(options.block);
  for (std::size_t r = 0; r < unit.recipes.size(); ++r) {
    StudyRow row = row_of(unit.recipes[r], engine.info().key_dim);
    const std::string recipe = row.measured.recipe;
    const auto keep = [&](const TrackedStep& step) { out.samples.push_back({recipe, step}); };
    const auto read = [&]() -> Status {
      KVSPAN_TRY(auto cache, source(recipe));
      KVSPAN_TRY(const auto tracking, TrackingCache::create(std::move(cache), keep));
      for (std::size_t begin = 0; begin < tokens; begin += block) {
        const BatchPart part{tracking.get(), window.subspan(begin, std::min(block, tokens - begin)),
                             BatchPart::Logits::kLast};
        KVSPAN_CHECK_OK(engine.decode({&part, 1}));
        if (progress) progress(r * tokens + begin + part.tokens.size());
      }
      return {};
    };
    if (const Status status = read(); !status) {
      if (status.error().code == ErrorCode::kCancelled) return std::optional<StudyData>();
      row.measured.failed = status.error().message;
      out.rows.push_back(std::move(row));
    }
  }
  return std::optional(std::move(out));
}

}  // namespace

void describe(StudyRow& row, std::int32_t head_dim) {
  const auto parsed = Recipe::parse(row.measured.recipe);
  if (!parsed) return;
  const RecipePart& method = parsed->method();
  row.family = method.name();
  if (!method.declares("rk")) return;
  if (method.has("ratio")) {
    row.rank_share = method.number("ratio");
  } else if (method.has("rk") && method.has("rv")) {
    const std::int32_t rk = method.rank("rk").resolve(head_dim).value_or(head_dim);
    const std::int32_t rv = method.rank("rv").resolve(head_dim).value_or(head_dim);
    row.rank_share = 0.5 * (rk + rv) / head_dim;
  }
}

Status fit_levels(StudyUnit& unit, ByteProbe& probe, const StudyOptions& options,
                  const CacheSource& source) {
  for (PlannedRecipe& planned : unit.recipes) {
    if (!planned.level || !planned.recipe.empty()) continue;
    KVSPAN_TRY(const Recipe open, Recipe::parse(family_recipe(planned.family, options)));
    const double bytes = *planned.level / 16.0 * static_cast<double>(probe.full_bytes());
    const auto fitted = fit_recipe(
        open, static_cast<std::uint64_t>(bytes), probe.shape(), probe.tokens(),
        [&](const std::string& recipe) { return probe.bytes(recipe, source); }, kLevelFit);
    if (!fitted) {
      if (fitted.error().code == ErrorCode::kCancelled) return fitted.error();
      planned.label = fitted.error().message;
    } else {
      planned.recipe = fitted->recipe;
    }
  }
  return {};
}

Result<std::optional<StudyData>> measure_unit(Engine& engine, const StudyUnit& unit,
                                              const StudyOptions& options,
                                              std::span<const std::vector<Token>> windows,
                                              const CacheSource& source,
                                              std::span<const StudyRow> known,
                                              const std::function<void(std::size_t)>& progress) {
  if (unit.kind == StudyUnit::Kind::kTracked) {
    return track(engine, unit, options, windows.front(), source, progress);
  }
  Pass pass = prepare(unit, engine.info().key_dim, source, known);
  PerplexityOptions measured;
  measured.block = options.block;
  measured.buckets = unit.kind == StudyUnit::Kind::kByPosition ? kBuckets : 0;
  KVSPAN_TRY(PerplexityReport report,
             measure_perplexity(engine, windows, pass.recipes, source, measured,
                                [&](std::size_t done, std::size_t) {
                                  if (progress) progress(done);
                                }));
  if (report.cancelled) return std::optional<StudyData>();
  for (const auto& [row, recipe] : pass.recipe_of_row) {
    pass.rows[row].measured = report.rows[recipe + 1];
  }
  return std::optional(StudyData{with_reference(std::move(pass.rows), report.rows.front()), {}});
}

}  // namespace kvspan
