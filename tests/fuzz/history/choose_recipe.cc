// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/history/choose_recipe.h"

#include <algorithm>
#include <vector>

#include "tests/fuzz/target.h"

namespace kvspan::fuzz {
namespace {

// What a value of the key may look like. Which of them are allowed, parsing tells.
std::string choose_value(const KeyDeclaration& key, Input& input) {
  std::vector<std::string> words = split_words(key.words);
  if (key.kind == ValueKind::kWord || (!words.empty() && input.one_in(3))) return words.empty() ? "" : input.of(words);
  switch (key.kind) {
    case ValueKind::kCount:
      if (!key.choices.empty()) return input.of(split_words(key.choices));
      return fmt::format("{}", input.of({0, 1, 2, 4, 5, 8, 16, 20, 32, 33, 48, 64, 96, 100, 128, 200}) / key.multiple * key.multiple);
    case ValueKind::kNumber:
      return fmt::format("{}", key.min + (std::min(key.max, key.min + 2.0) - key.min) * input.below(65) / 64.0);
    case ValueKind::kShare:
      return fmt::format("{}", std::clamp(input.of({0.1, 0.02, 0.3, 0.5, 0.9, 1.0, 0.0}), key.min, key.max));
    case ValueKind::kRank:
      return input.of<const char*>({"4", "1", "3", "6", "full", "d/2", "0.5"});
    case ValueKind::kAmount:
      return input.of<const char*>({"0.5", "40", "0.1", "64", "1", "0.9"});
    case ValueKind::kLevels:
      return input.of<const char*>({"0/2/4/8", "0/2/4/6/8", "0/1/2/3/4", "2/4"});
    default:
      return fmt::format("{}", input.between(1, 64));
  }
}

// Texts of tests are short: ends of their usual length would hold all of it.
constexpr std::string_view kShort[] = {"sink", "recent", "learn", "chunk", "block", "every", "anchor", "group", "size", "keep", "page"};

std::string choose_part(const MethodDeclaration& method, Input& input, std::string_view before) {
  std::string text = fmt::format("{}{}", before, method.name);
  // A method that cannot be without some key begins with that of its example.
  if (!Recipe::parse(text)) text = fmt::format("{}{}", before, method.example);
  bool any = text.find(':', before.size()) != std::string::npos;
  for (const KeyDeclaration& key : method.keys) {
    const bool wanted = std::find(std::begin(kShort), std::end(kShort), key.name) != std::end(kShort);
    if (wanted ? input.one_in(8) : !input.one_in(4)) continue;
    const std::string value = choose_value(key, input);
    const std::string longer = fmt::format("{}{}{}={}", text, any ? "," : ":", key.name, value);
    if (!Recipe::parse(longer)) continue;
    text = longer;
    any = true;
  }
  return text;
}

std::vector<const MethodDeclaration*> methods_of(bool selectors) {
  std::vector<const MethodDeclaration*> all;
  for (const MethodDeclaration& method : all_methods()) {
    if (selectors ? method.kind == MethodKind::kSelector : method.make != nullptr) all.push_back(&method);
  }
  return all;
}

}  // namespace

Recipe choose_recipe(Input& input) {
  static const auto methods = methods_of(false), selectors = methods_of(true);
  const auto parsed = [](const std::string& text) {
    auto recipe = Recipe::parse(text);
    must(recipe.has_value(), "'{}' is made of parts that parse and does not: {}", text, recipe ? "" : recipe.error().message);
    return *std::move(recipe);
  };
  const std::string alone = choose_part(*input.of(methods), input, "");
  if (!input.one_in(5)) return parsed(alone);
  const std::string pair = choose_part(*input.of(selectors), input, "") + "+" + alone;
  return Recipe::parse(pair) ? parsed(pair) : parsed(alone);
}

bool reads_all_tokens(const Recipe& recipe) {
  return std::all_of(recipe.parts().begin(), recipe.parts().end(),
                     [](const RecipePart& part) { return part.method().tokens == TokenUse::kAll; });
}

}  // namespace kvspan::fuzz
