// SPDX-License-Identifier: Apache-2.0
// Recipes for conformance, made from the table of methods: each method with short ends, with none,
// and with every word that each of its keys can have; and each selector with each method that it
// goes with. A new method or key is there as soon as its row is.
#pragma once

#include <string>
#include <vector>

namespace kvspan::conformance {

struct TableRecipe {
  std::string text;
  bool usual = true;  // else one value of one key is another
};
std::vector<TableRecipe> recipes_of_the_table();
// One of each method, and a pair of each selector: for what passes calls on to caches that all of the
// table are checked with.
std::vector<TableRecipe> recipes_of_stores();
// As part of the name of a test.
std::string name_of_recipe(const std::string& text);

}  // namespace kvspan::conformance
