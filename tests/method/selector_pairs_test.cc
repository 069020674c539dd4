// SPDX-License-Identifier: Apache-2.0
// Every selector with every method in every form that keys of the table choose from: refused with the
// reason, or it works.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/fail.h"
#include "method/method_cache.h"
#include "recipe/recipe.h"
#include "tests/method/recipes.h"
#include "tests/method/synthetic.h"

namespace kvspan {
namespace selector_pairs_test {

using testing::SyntheticText;

constexpr std::int32_t kTokens = 160;

// A short recipe of the method where `key` is `value`.
std::string with_key(const MethodDeclaration& method, std::string_view key, std::string_view value) {
  std::string recipe = testing::short_recipe(method.name);
  std::string made = std::string(method.name) + ":" + std::string(key) + "=" + std::string(value);
  recipe.erase(0, method.name.size() + 1);
  std::replace(recipe.begin(), recipe.end(), ',', '|');
  for (const std::string& other : split_words(recipe)) {
    if (other.substr(0, other.find('=')) != key) made += "," + other;
  }
  return made;
}

// The method as short recipes have it, then with each value of each key that has some to choose from.
std::vector<std::string> forms_of(const MethodDeclaration& method) {
  std::vector<std::string> forms = {testing::short_recipe(method.name)};
  for (const KeyDeclaration& key : method.keys) {
    for (const std::string_view values : {key.words, key.choices}) {
      if (values.empty()) continue;
      for (const std::string& value : split_words(values)) {
        forms.push_back(with_key(method, key.name, value));
      }
    }
  }
  return forms;
}

void run_history(MethodCache& cache, const SyntheticText& text) {
  std::vector<float> all = testing::run(cache, text, 0, 120, 60);
  const auto fork = cache.fork();
  ASSERT_TRUE(fork);
  for (const std::int32_t n : {12, 20}) {
    const std::int32_t back = cache.tokens() - 9;
    const std::vector<float> more = testing::run(cache, text, cache.tokens(), n, 1);
    all.insert(all.end(), more.begin(), more.end());
    if (back < cache.least_tokens()) continue;
    ASSERT_TRUE(cache.truncate(back));
  }
  for (const float x : all) ASSERT_TRUE(std::isfinite(x));
  const std::vector<float> others = testing::run(**fork, text, 120, 12, 1);
  EXPECT_TRUE(std::equal(others.begin(), others.end(),
                         all.begin() + std::ptrdiff_t(all.size() * 120 / 152)));
}

class SelectorPairs : public ::testing::TestWithParam<std::string> {};

TEST_P(SelectorPairs, AreRefusedWithAReasonOrWork) {
  const SyntheticText text(testing::synthetic_shape(), kTokens, 8);
  const Calibration calibration = text.calibration();
  int ran = 0, refused = 0;
  for (const MethodDeclaration& method : all_methods()) {
    if (method.make == nullptr) continue;
    for (const std::string& form : forms_of(method)) {
      const std::string pair = testing::short_recipe(GetParam()) + "+" + form;
      SCOPED_TRACE(pair);
      const auto prepared = [&]() -> Result<std::shared_ptr<const Prepared>> {
        KVSPAN_TRY(const Recipe parsed, Recipe::parse(pair));
        return prepare(text.shape(), parsed, &calibration);
      }();
      if (!prepared) {
        EXPECT_FALSE(prepared.error().message.empty());
        ++refused;
        continue;
      }
      MethodCache cache(*prepared);
      run_history(cache, text);
      ++ran;
    }
  }
  EXPECT_GT(ran, 20);
  EXPECT_GT(refused, 5);
}

TEST(ReadSelectors, OlderQueriesReadWhatTheyReadWhenTheyWereTheNewest) {
  const SyntheticText text(testing::synthetic_shape(), kTokens, 8);
  for (const char* recipe : {"quest:keep=48,page=16,skip=0+full", "shadowkv:keep=48,chunk=8,outliers=2,recent=16+full"}) {
    MethodCache cache(prepare(text.shape(), Recipe::parse(recipe).value(), nullptr).value());
    const std::vector<float> then = testing::run(cache, text, 0, kTokens, 1);  // [tokens] of both layers
    const std::size_t width = then.size() / kTokens / 2;
    TeamState state;
    Team team(state, 0, 1);
    const auto scratch = make_attention_scratch();
    std::vector<float> now(width);
    for (std::int32_t position = 0; position < kTokens; ++position) {
      for (std::size_t layer = 0; layer < 2; ++layer) {
        const LayerShape& l = text.shape().layers[layer];
        const auto heads = std::size_t(l.query_heads), dim = std::size_t(l.value_dim);
        ASSERT_TRUE(cache.attend(int(layer), text.queries(layer, position, 1), {now.data(), {1, heads, dim}},
                                 *scratch, team));
        for (std::size_t j = 0; j < width; ++j) {
          ASSERT_NEAR(now[j], then[(std::size_t(position) * 2 + layer) * width + j], 1e-5)
              << recipe << ", position " << position;
        }
      }
    }
  }
}

std::vector<std::string> selectors() {
  std::vector<std::string> names;
  for (const MethodDeclaration& method : all_methods()) {
    if (method.kind == MethodKind::kSelector) names.emplace_back(method.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, SelectorPairs, ::testing::ValuesIn(selectors()),
                         [](const auto& selector) { return selector.param; });

}  // namespace selector_pairs_test
}  // namespace kvspan
