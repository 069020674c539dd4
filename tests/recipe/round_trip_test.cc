// SPDX-License-Identifier: Apache-2.0
// Random recipes from the declared keys: whatever parses prints canonically and parses back to an
// equal recipe; whatever does not is refused, never half taken.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "recipe/recipe.h"

namespace kvspan {
namespace {

class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed) {}

  std::string recipe() {
    std::string text = part(false);
    if (chance(0.3)) {
      text = chance(0.5) ? text + "+" + part(true) : part(true) + "+" + text;
    }
    return text;
  }

 private:
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  std::string pick(const std::vector<std::string>& items) {
    return items[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(items.size()) - 1))];
  }

  std::string part(bool selector) {
    const auto methods = all_methods();
    const MethodDeclaration* method = nullptr;
    do {
      method = &methods[static_cast<std::size_t>(
          between(0, static_cast<std::int64_t>(methods.size()) - 1))];
    } while (selector && method->kind != MethodKind::kSelector);
    std::map<std::string_view, std::string> chosen;
    for (const KeyDeclaration& key : method->keys) {
      if (chance(2.0 / static_cast<double>(method->keys.size()))) chosen[key.name] = value(key);
    }
    // Mostly with what they need, or few of those with rules would be taken.
    for (const KeyRule& rule : method->rules) {
      const bool needs =
          rule.kind == KeyRule::Kind::kTogether || rule.kind == KeyRule::Kind::kOnlyWith;
      if (!needs || !chosen.contains(rule.key) || chance(0.2)) continue;
      if (rule.kind == KeyRule::Kind::kOnlyWith) {
        chosen[rule.other] = pick(split_words(rule.value));
      } else if (!chosen.contains(rule.other)) {
        chosen[rule.other] = value(*method->find_key(rule.other));
      }
    }
    std::vector<std::string> items;
    for (const auto& [key, text] : chosen) items.push_back(std::string(key) + "=" + text);
    std::shuffle(items.begin(), items.end(), random_);
    std::string text(method->name);
    for (std::size_t i = 0; i < items.size(); ++i) text += (i == 0 ? ":" : ",") + items[i];
    return text;
  }

  std::string share() {
    return fmt::format("{}", std::uniform_real_distribution<>(1e-9, 1)(random_));
  }

  std::string value(const KeyDeclaration& key) {
    const auto words = split_words(key.words);
    if (!words.empty() && (key.kind == ValueKind::kWord || chance(0.5))) return pick(words);
    switch (key.kind) {
      case ValueKind::kCount: {
        if (!key.choices.empty()) return pick(split_words(key.choices));
        const auto low = static_cast<std::int64_t>(key.min),
                   high = static_cast<std::int64_t>(key.max);
        return fmt::format("{}",
                           between(low, std::min(high, low + 5000)) / key.multiple * key.multiple);
      }
      case ValueKind::kNumber:
      case ValueKind::kShare: {
        const double number = std::uniform_real_distribution<>(key.min, key.max)(random_);
        return chance(0.5) ? fmt::format("{}", number) : fmt::format("{:.3f}%", 100 * number);
      }
      case ValueKind::kRank:
        return pick({"full", "d", fmt::format("d/{}", between(1, 9)),
                     fmt::format("{}", between(1, 64)), share()});
      case ValueKind::kAmount:
        return pick({share(), fmt::format("{}", between(1, 4096)), "33%", "1.0"});
      case ValueKind::kRows:
        return fmt::format("{}{}", between(1, 64), chance(0.5) ? "r" : "");
      case ValueKind::kBytes:
        return fmt::format("{}{}", between(1, 3000), pick({"", "B", "kB", "KiB", "MiB", "GiB"}));
      case ValueKind::kLevels:
        return pick({"0-6/8", "0/2/4/8", "0-3", "1/2", "0-8"});
      case ValueKind::kWord:
        break;
    }
    return {};
  }

  std::mt19937 random_;
};

TEST(RecipeRoundTrip, RandomRecipesPrintAndParseBackEqual) {
  constexpr unsigned kSeed = 7;
  Generator generator(kSeed);
  std::set<std::string> seen;
  std::size_t taken = 0;
  const std::size_t kTrials = 1500 * all_methods().size();
  for (std::size_t trial = 0; trial < kTrials; ++trial) {
    const std::string text = generator.recipe();
    const auto recipe = Recipe::parse(text);
    if (!recipe.has_value()) {
      ASSERT_NE(recipe.error().message.find("'" + text + "'"), std::string::npos);
      continue;
    }
    ++taken;
    const std::string canonical = recipe->text();
    const auto again = Recipe::parse(canonical);
    ASSERT_TRUE(again.has_value()) << text << "\n" << again.error().message;
    ASSERT_EQ(*again, *recipe) << text << " -> " << canonical << " -> " << again->text();
    ASSERT_EQ(again->text(), canonical);
    for (const RecipePart& part : recipe->parts()) {
      for (const KeyDeclaration& key : part.method().keys) {
        if (part.given(key.name)) seen.insert(fmt::format("{}:{}", part.name(), key.name));
      }
    }
  }
  EXPECT_GT(taken, kTrials / 3) << "seed " << kSeed;
  for (const MethodDeclaration& method : all_methods()) {
    for (const KeyDeclaration& key : method.keys) {
      EXPECT_TRUE(seen.contains(fmt::format("{}:{}", method.name, key.name)))
          << method.name << ":" << key.name << " was never given";
    }
  }
}

// Every pair of a selector and a method is either taken in both orders, equal, or refused in both
// with a reason.
TEST(RecipeRoundTrip, EveryPairOfMethodsIsTakenOrRefusedInBothOrders) {
  for (const MethodDeclaration& a : all_methods()) {
    for (const MethodDeclaration& b : all_methods()) {
      const std::string left =
          a.kind == MethodKind::kChooser ? "auto:budget=1GiB" : std::string(a.name);
      const std::string right =
          b.kind == MethodKind::kChooser ? "auto:budget=1GiB" : std::string(b.name);
      const auto one = Recipe::parse(left + "+" + right), two = Recipe::parse(right + "+" + left);
      ASSERT_EQ(one.has_value(), two.has_value()) << left << " " << right;
      if (one.has_value()) {
        EXPECT_EQ(*one, *two);
        EXPECT_NE(a.kind == MethodKind::kSelector, b.kind == MethodKind::kSelector);
      }
    }
  }
}

}  // namespace
}  // namespace kvspan
