// SPDX-License-Identifier: Apache-2.0
// One part of a recipe: "method:key=value,key=value".
#pragma once

#include <string_view>

#include "recipe/recipe.h"

namespace kvspan {

// text: not empty, no '+'. The error does not repeat the recipe.
Result<RecipePart> parse_part(std::string_view text);

}  // namespace kvspan
