// SPDX-License-Identifier: Apache-2.0
// What a study measures: units of recipes, each measured on all windows beside the full cache, and
// written when done. Pure: the same options give the same plan.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvspan/result.h"

namespace kvspan {

struct StudyOptions {
  bool quick = false;
  std::int32_t context = 4096;  // tokens of a window, a multiple of 64
  std::int32_t windows = 4;
  std::int32_t block = 64;  // tokens between two uses of the cache
  // Tokens at full rank; together a multiple of `block`.
  std::int32_t sink = 64, recent = 128;
  std::vector<double> levels;       // bits at which recipes of equal bytes are compared
  std::int32_t tracked_tokens = 0;  // of the first window, whose errors are held against bounds
};
// Of a mode, for a model with that context.
StudyOptions study_options(bool quick, std::int32_t model_context);

struct PlannedRecipe {
  std::string group, label;
  std::string recipe;           // empty: `family` at `level`, fitted once the model is known
  std::string family;           // only with `level`
  std::optional<double> level;  // bits
};

struct StudyUnit {
  enum class Kind { kPerplexity, kByPosition, kTracked };
  std::string name;  // of its file
  Kind kind = Kind::kPerplexity;
  std::vector<PlannedRecipe> recipes;
};

std::vector<StudyUnit> study_plan(const StudyOptions& options);

// Tokens that are read for a unit, the full cache's included. A recipe of `read` is not read again;
// those of the unit are added to it.
std::size_t tokens_of(const StudyUnit& unit, const StudyOptions& options,
                      std::set<std::string>& read);
// Those read once, before the first unit with levels: rows that recipes are fitted on.
std::size_t fitting_tokens(const StudyOptions& options);

// Headings of the groups, in order.
struct StudyGroup {
  std::string_view name, title, note;
};
std::span<const StudyGroup> study_groups() noexcept;

// The recipe of a family that is fitted to levels, its size left open.
std::string family_recipe(std::string_view family, const StudyOptions& options);

}  // namespace kvspan
