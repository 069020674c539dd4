// SPDX-License-Identifier: Apache-2.0
// Which parts of a recipe go together.
#pragma once

#include <vector>

#include "recipe/recipe.h"

namespace kvspan {

// Puts the selector, if any, before the method; adds `full` to a selector that stands alone. An
// error says why the parts cannot be joined.
Status compose(std::vector<RecipePart>& parts);

}  // namespace kvspan
