// SPDX-License-Identifier: Apache-2.0
// Texts of recipes: what parses has a canonical text that parses to the same; what can be made can be
// used, saved and loaded.
#include <algorithm>

#include "base/byte_stream.h"
#include "recipe/recipe.h"
#include "tests/fuzz/steps.h"
#include "tests/fuzz/target.h"
#include "tests/method/recipes.h"

namespace kvspan::fuzz {
namespace {

const Model& model(std::size_t which) {
  static const Model plain(small_shape(16), 5), windowed(small_shape(16, 40), 5);
  return which == 0 ? plain : windowed;
}

// Larger numbers are right, and slow to try.
bool cheap(const Recipe& recipe) {
  for (const RecipePart& part : recipe.parts()) {
    for (const KeyDeclaration& key : part.method().keys) {
      if (key.kind == ValueKind::kCount && part.has(key.name) && !part.is_word(key.name) &&
          part.count(key.name) > 4096) {
        return false;
      }
    }
  }
  return true;
}

void use(const CacheFactory& factory, const Model& of) {
  auto cache = factory.make();
  const auto fine = [&](bool done, const char* what) { must(done, "{}: {} fails", factory.recipe(), what); };
  fine(step(*cache, of, 0, 70), "the first step");
  fine(step(*cache, of, 70, 1), "the second step");
  fine(cache->truncate(std::max(40, cache->least_tokens())).has_value(), "truncate");
  fine(step(*cache, of, cache->tokens(), 5), "the step after truncate");
  const auto saved = cache->save();
  fine(saved.has_value(), "save");
  const auto loaded = factory.load(*saved);
  must(loaded.has_value(), "{}: what was saved is not loaded: {}", factory.recipe(), loaded ? "" : loaded.error().message);
}

bool run(std::span<const std::uint8_t> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  const auto recipe = Recipe::parse(text);
  must(needs_calibration(text).has_value() == recipe.has_value(), "needs_calibration and parse disagree");
  if (!recipe) return false;
  const auto again = Recipe::parse(recipe->text());
  must(again.has_value(), "the canonical text '{}' does not parse: {}", recipe->text(), again ? "" : again.error().message);
  must(again->text() == recipe->text() && *again == *recipe, "'{}' is not canonical: '{}'", recipe->text(), again->text());
  // Making and using one takes a thousand times as long as parsing it.
  if (!cheap(*recipe) || crc64(std::as_bytes(input)) % 64 != 0) return true;
  static const Calibration calibration = model(0).calibration();
  for (const std::size_t which : {0u, 1u}) {
    const auto factory = CacheFactory::create(model(which).shape(), text, &calibration);
    if (factory) use(*factory, model(which));
  }
  return true;
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (const testing::SuiteRecipe& recipe : testing::suite_recipes()) all.emplace_back(recipe.text.begin(), recipe.text.end());
  for (const MethodDeclaration& method : all_methods()) all.emplace_back(method.example.begin(), method.example.end());
  return all;
}

}  // namespace

extern const Target recipe_target{"recipe", "texts of recipes; one in 64 that parse is made and used", 400, run, seeds};

}  // namespace kvspan::fuzz
