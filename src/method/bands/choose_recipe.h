// SPDX-License-Identifier: Apache-2.0
// auto: the recipe that fits a budget of bytes, or the smallest one that costs no more than asked,
// by the rates that calibration measured. Candidates are bands by falling bits with the usual ends,
// then with short ones; full where even that fits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kvspan/cache.h"
#include "kvspan/calibration.h"
#include "kvspan/result.h"
#include "recipe/recipe.h"

namespace kvspan {

struct Choice {
  std::string recipe;                 // canonical
  std::int32_t tokens = 0;            // that `bytes` is for; 0 where no budget was given
  std::size_t bytes = 0;              // that the cache takes at most
  std::optional<RatePoint> expected;  // none where no rates were measured
};

// `part` is auto. Fails where nothing fits, naming the least that would, where a budget comes
// without ctx, and where a quality is asked for and no rates were measured.
Result<Choice> choose_recipe(const CacheShape& shape, const RecipePart& part,
                             const Calibration& calibration);

// What `bands` at `bits` per number should cost: KL and loss on straight lines of their logarithms
// between measured points, and below the first; above the last, as that. `rates` is not empty.
RatePoint expected_cost(const std::vector<RatePoint>& rates, double bits);

// Bytes of `bands` at `bits` per number, without shared codes: never less than what a
// cache takes after `tokens` tokens, a whole step settled.
std::size_t most_bands_bytes(const CacheShape& shape, double bits, std::int32_t recent,
                             std::int32_t tokens);

}  // namespace kvspan
