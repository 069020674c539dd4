// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/recipes.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "recipe/recipe.h"
#include "tests/method/recipes.h"

namespace kvspan::conformance {
namespace {

using Recipes = std::vector<TableRecipe>;

bool add_if_it_parses(const std::string& text, bool usual, Recipes& to) {
  const auto parsed = Recipe::parse(text);
  if (!parsed) return false;
  const std::string canonical = parsed->text();
  const auto same = [&](const TableRecipe& known) { return known.text == canonical; };
  if (std::none_of(to.begin(), to.end(), same)) to.push_back({canonical, usual});
  return true;
}

// `text` with this value for a key, whether it has one or not.
std::string with(std::string text, std::string_view key, std::string_view value) {
  const std::string name = std::string(key) + "=";
  for (const char before : {':', ','}) {
    const std::size_t at = text.find(before + name);
    if (at == std::string::npos) continue;
    const std::size_t from = at + 1 + name.size(), end = std::min(text.find(',', from), text.size());
    return text.replace(from, end - from, value);
  }
  return text + (text.find(':') == std::string::npos ? ":" : ",") + name + std::string(value);
}

// The same without its ith key.
std::string without(const std::string& text, std::size_t i) {
  std::size_t begin = text.find(':');
  for (; i > 0 && begin != std::string::npos; --i) begin = text.find(',', begin + 1);
  if (begin == std::string::npos) return {};
  const std::size_t end = text.find(',', begin + 1);
  if (end == std::string::npos) return text.substr(0, begin);
  return text.substr(0, begin + 1) + text.substr(end + 1);
}

// Also where another key has to go for this value.
void add_with(const std::string& text, std::string_view key, std::string_view value,
              Recipes& to) {
  if (add_if_it_parses(with(text, key, value), false, to)) return;
  for (std::size_t i = 0;; ++i) {
    const std::string fewer = without(text, i);
    if (fewer.empty()) return;
    if (fewer.find(std::string(key) + "=") == std::string::npos &&
        add_if_it_parses(with(fewer, key, value), false, to)) {
      return;
    }
  }
}

// The method with short ends, and where it can learn from a short text, with what that takes.
std::vector<std::string> bases_of(const MethodDeclaration& method) {
  std::vector<std::string> bases{testing::short_recipe(method.name)};
  if (method.find_key("learn") != nullptr) {
    const std::string online = with(with(bases[0], "calib", "online"), "learn", "48");
    bases.push_back(online);
    bases.push_back(with(with(online, "refresh", "48"), "ends", "int8"));
  }
  return bases;
}

// Ends that are not there, alone and together; those that are no multiple of anything.
void add_ends(const std::string& text, Recipes& to) {
  add_if_it_parses(text, true, to);
  add_if_it_parses(with(text, "recent", "0"), true, to);
  add_if_it_parses(with(with(text, "recent", "0"), "sink", "0"), false, to);
  add_if_it_parses(with(with(text, "recent", "7"), "sink", "5"), false, to);
}

// Some values of a key, or none where no short text shows what it does.
std::vector<std::string> values_of(const KeyDeclaration& key) {
  std::vector<std::string> values;
  if (!key.words.empty()) values = split_words(key.words);
  if (key.kind == ValueKind::kShare) values.emplace_back("50%");
  if (key.kind == ValueKind::kCount && key.max <= 8.0) values.emplace_back("2");
  if (!key.choices.empty()) {
    for (std::string& choice : split_words(key.choices)) values.push_back(std::move(choice));
  }
  std::erase(values, std::string(key.default_text));
  return values;
}

}  // namespace

Recipes recipes_of_the_table() {
  Recipes recipes;
  for (const MethodDeclaration& method : all_methods()) {
    if (method.make == nullptr) continue;
    const std::vector<std::string> bases = bases_of(method);
    for (const std::string& base : bases) add_ends(base, recipes);
    for (const KeyDeclaration& key : method.keys) {
      for (const std::string& value : values_of(key)) add_with(bases[0], key.name, value, recipes);
    }
  }
  for (const testing::SuiteRecipe& pair : testing::suite_pairs()) {
    add_if_it_parses(pair.text, false, recipes);
  }
  return recipes;
}

Recipes recipes_of_stores() {
  Recipes recipes;
  for (const MethodDeclaration& method : all_methods()) {
    if (method.make == nullptr && method.make_selector == nullptr) continue;
    const std::string text = testing::short_recipe(method.name);
    add_if_it_parses(text, false, recipes);
  }
  return recipes;
}

std::string name_of_recipe(const std::string& text) {
  std::string name;
  for (const char c : text) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

}  // namespace kvspan::conformance
