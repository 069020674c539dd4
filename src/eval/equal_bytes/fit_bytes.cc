// SPDX-License-Identifier: Apache-2.0
#include "eval/equal_bytes/fit_bytes.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/fail.h"

namespace kvspan {
namespace {

struct Setting {
  std::int32_t step = 0;
  double bytes = 0.0;
};

// The neighbours of the target on a dial: the last step that holds no more, the first that holds
// more; either may be missing.
struct Neighbours {
  std::optional<Setting> low, high;
};

// Where to look next: between both neighbours on the line through them, or, where one is missing,
// on the line through the last two settings.
std::int32_t guess(const Neighbours& known, const Setting& before, double target,
                   const SizeDial& dial, bool halve) {
  if (known.low && known.high) {
    const std::int32_t from = known.low->step, to = known.high->step;
    const double rise = std::max(1.0, known.high->bytes - known.low->bytes);
    const double share = halve ? 0.5 : (target - known.low->bytes) / rise;
    return std::clamp(from + static_cast<std::int32_t>((to - from) * share), from + 1, to - 1);
  }
  const Setting& last = known.low ? *known.low : *known.high;
  const double rise = (last.bytes - before.bytes) / std::max(1, last.step - before.step);
  const double line = last.step + (target - last.bytes) / std::max(1.0, rise);
  const auto step = static_cast<std::int32_t>(
      std::clamp(line, static_cast<double>(dial.least), static_cast<double>(dial.most)));
  return known.low ? std::clamp(step, last.step + 1, dial.most)
                   : std::clamp(step, dial.least, last.step - 1);
}

Result<Neighbours> search(const SizeDial& dial, double target, double near,
                          const BytesOf& bytes_of) {
  Neighbours known;
  Setting before;  // nothing holds nothing
  std::int32_t step = dial.start;
  for (int same_side = 0;;) {
    KVSPAN_TRY(const std::uint64_t found, bytes_of(dial.recipe(step)));
    const Setting setting{step, static_cast<double>(found)};
    const bool below = setting.bytes <= target;
    // A line that always errs to one side closes in slowly; then halves do better.
    same_side = (below ? known.low : known.high) ? same_side + 1 : 0;
    std::optional<Setting>& side = below ? known.low : known.high;
    if (side) before = side->step < setting.step ? *side : before;
    side = setting;
    if (below && setting.bytes >= (1.0 - near) * target) break;
    if (known.low &&
        (known.low->step == dial.most || (known.high && known.high->step - known.low->step <= 1))) {
      break;
    }
    if (!known.low && known.high->step == dial.least) break;
    step = guess(known, before, target, dial, same_side >= 2);
  }
  return known;
}

}  // namespace

Result<FittedRecipe> fit_recipe(const Recipe& recipe, std::uint64_t target, const CacheShape& shape,
                                std::int32_t tokens, const BytesOf& bytes_of,
                                const FitOptions& options) {
  const auto aim = static_cast<double>(target);
  KVSPAN_TRY(const SizeDial dial, size_dial(recipe, shape, tokens));
  KVSPAN_TRY(const Neighbours found, search(dial, aim, options.near, bytes_of));
  const auto fitted = [](const SizeDial& of, const Setting& setting) {
    return FittedRecipe{of.recipe(setting.step), static_cast<std::uint64_t>(setting.bytes)};
  };
  std::optional<FittedRecipe> best;
  if (found.low) best = fitted(dial, *found.low);
  const bool near = found.low && found.low->bytes >= (1.0 - options.near) * aim;
  // The next larger step with fewer recent tokens, or else this one with more.
  for (const auto* side : {&found.high, &found.low}) {
    if (near || !options.spend_rest || !*side) continue;
    KVSPAN_TRY(const Recipe step, Recipe::parse(dial.recipe((*side)->step)));
    auto recent = recent_dial(step, tokens);
    if (!recent) continue;
    if (side == &found.high) {
      recent->least = (recent->start + 1) / 2;
      recent->most = recent->start;
    }
    KVSPAN_TRY(const Neighbours filled, search(*recent, aim, options.near, bytes_of));
    if (!filled.low) continue;
    best = fitted(*recent, *filled.low);
    break;
  }
  const auto off = [&](const FittedRecipe& of) {
    return std::abs(static_cast<double>(of.bytes) / aim - 1.0);
  };
  const bool higher =
      found.high && (!best || (options.over && fitted(dial, *found.high).bytes - aim <
                                                   aim - static_cast<double>(best->bytes)));
  const FittedRecipe nearest = higher ? fitted(dial, *found.high) : *best;
  const bool allowed = options.over || !higher || off(nearest) < options.near;
  if (!allowed || off(nearest) > options.most_off) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: no setting holds {} bytes; the nearest, {}, holds {} ({:.2f} times as many)",
                recipe.text(), target, nearest.recipe, nearest.bytes,
                static_cast<double>(nearest.bytes) / aim);
  }
  return nearest;
}

}  // namespace kvspan
