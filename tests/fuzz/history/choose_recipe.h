// SPDX-License-Identifier: Apache-2.0
// Recipes from the table of methods: any method and key, any value that fits a text of some hundred
// tokens, so that a new method or key is tried as soon as it is declared.
#pragma once

#include <string>

#include "recipe/recipe.h"
#include "tests/fuzz/input.h"

namespace kvspan::fuzz {

Recipe choose_recipe(Input& input);

// Whether attention reads every token that the layer's window shows.
bool reads_all_tokens(const Recipe& recipe);

}  // namespace kvspan::fuzz
