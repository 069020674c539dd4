// SPDX-License-Identifier: Apache-2.0
// The table of methods is data written by hand: what every line of it must keep to.
#include "recipe/declaration.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "recipe/recipe.h"

namespace kvspan {
namespace {

TEST(MethodTable, HoldsEveryMethodOnce) {
  std::set<std::string_view> names;
  for (const MethodDeclaration& method : all_methods()) {
    EXPECT_TRUE(names.insert(method.name).second) << method.name;
    EXPECT_EQ(find_method(method.name), &method);
    // What makes it is of its kind.
    EXPECT_EQ(method.make_selector != nullptr, method.kind == MethodKind::kSelector);
    EXPECT_EQ(method.choose != nullptr, method.kind == MethodKind::kChooser);
    EXPECT_EQ(method.make != nullptr,
              method.kind == MethodKind::kMethod || method.kind == MethodKind::kBaseline);
  }
  EXPECT_EQ(all_methods().front().name, "bands") << "what is listed first";
}

TEST(MethodTable, KeysAreUniqueWithDefaultsThatAreAllowedAndCanonical) {
  for (const MethodDeclaration& method : all_methods()) {
    std::set<std::string_view> names;
    EXPECT_FALSE(method.summary.empty()) << method.name;
    for (const KeyDeclaration& key : method.keys) {
      SCOPED_TRACE(std::string(method.name) + ":" + std::string(key.name));
      EXPECT_TRUE(names.insert(key.name).second);
      EXPECT_FALSE(key.summary.empty());
      EXPECT_FALSE(allowed_text(key).empty());
      if (key.default_text.empty()) continue;
      const auto value = parse_value(key, key.default_text);
      ASSERT_TRUE(value.has_value()) << value.error().message;
      EXPECT_EQ(text_of(key.kind, *value), key.default_text);
    }
  }
}

TEST(MethodTable, OneNameMeansOneKindOfValueEverywhere) {
  std::map<std::string_view, ValueKind> kinds;
  for (const MethodDeclaration& method : all_methods()) {
    for (const KeyDeclaration& key : method.keys) {
      // Bits are whole where each number has as many, an average elsewhere; what h2o calls recent
      // may be a share.
      if (key.name.ends_with("bits") || (method.name == "h2o" && key.name == "recent")) continue;
      const auto [known, is_new] = kinds.emplace(key.name, key.kind);
      EXPECT_EQ(known->second, key.kind) << method.name << ":" << key.name;
    }
  }
}

TEST(MethodTable, RulesNameKeysAndWordsThatExist) {
  for (const MethodDeclaration& method : all_methods()) {
    for (const KeyRule& rule : method.rules) {
      SCOPED_TRACE(std::string(method.name) + ": " + std::string(rule.key));
      for (const std::string& key : split_words(rule.key)) EXPECT_TRUE(method.find_key(key));
      EXPECT_FALSE(rule.reason.empty());
      if (rule.other.empty()) continue;
      const KeyDeclaration* other = method.find_key(rule.other);
      ASSERT_NE(other, nullptr);
      for (const std::string& word : split_words(rule.value)) {
        EXPECT_TRUE(parse_value(*other, word).has_value()) << word;
      }
    }
  }
}

TEST(MethodTable, ExamplesParseToTheirMethod) {
  for (const MethodDeclaration& method : all_methods()) {
    const auto recipe = Recipe::parse(method.example);
    ASSERT_TRUE(recipe.has_value()) << recipe.error().message;
    const bool selects = method.kind == MethodKind::kSelector;
    EXPECT_EQ(selects ? recipe->selector()->name() : recipe->method().name(), method.name);
  }
}

TEST(MethodTable, AllowedValuesReadAsAPersonWouldSayThem) {
  EXPECT_EQ(allowed_text(*find_method("static")->find_key("store")),
            "f16, f32, bf16, int8 or int4");
  EXPECT_EQ(allowed_text(*find_method("quant")->find_key("bits")), "8, 4, 3 or 2");
  EXPECT_EQ(allowed_text(*find_method("fd")->find_key("tau")),
            "calibrated or a number from 0 to 1");
  EXPECT_EQ(allowed_text(*find_method("static")->find_key("anchor")),
            "a multiple of 16 from 16 to 4096");
  EXPECT_EQ(allowed_text(*find_method("oja")->find_key("top")), "a share from 0.01% to 100%");
}

}  // namespace
}  // namespace kvspan
