// SPDX-License-Identifier: Apache-2.0
// Which properties are checked with which texts.
#include <map>
#include <numeric>
#include <ostream>

#include "base/random.h"
#include "recipe/recipe.h"
#include "tests/conformance/cache_properties.h"
#include "tests/conformance/sequence_properties.h"

namespace kvspan::conformance {
namespace {

constexpr std::int32_t kLength = 300;

CacheShape shape_of(std::int32_t window, std::int32_t chunk) {
  CacheShape shape = testing::synthetic_shape();
  shape.layers[0].window = window;
  shape.layers[1].chunk = chunk;
  return shape;
}

std::vector<std::int32_t> positions_from(std::int32_t first) {
  std::vector<std::int32_t> positions(kLength);
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

// Some tokens are missing here and there, a few or many at a time.
std::vector<std::int32_t> positions_with_gaps() {
  std::vector<std::int32_t> positions;
  Random random(3);
  for (std::int32_t at = 5; std::int32_t(positions.size()) < kLength; ++at) {
    positions.push_back(at);
    if (random.below(8) == 0) at += std::int32_t(random.below(random.below(4) == 0 ? 30 : 4));
  }
  return positions;
}

Scene scene_of(const std::string& name, const CacheShape& shape,
               std::vector<std::int32_t> positions) {
  static std::map<std::string, Scene> made;
  if (const auto known = made.find(name); known != made.end()) return known->second;
  testing::SyntheticText text(shape, kLength, 17, std::move(positions));
  // Tokens like the first, of massive activations.
  Random random(5);
  for (const std::int32_t token : {0, 37, 66, 90, 118}) text.make_massive(token, random);
  const testing::SyntheticText plain(shape, kLength, 17);
  Scene scene{name, std::make_shared<const testing::SyntheticText>(std::move(text)),
              std::make_shared<const Calibration>(plain.calibration())};
  return made[name] = scene;
}

// A text for a recipe. Layers with other windows cannot be encoded together: such recipes get a text
// whose layers are alike.
Scene scene_named(const std::string& name, bool alike) {
  const CacheShape windows = alike ? [] {
    CacheShape shape = shape_of(40, 0);
    shape.layers[1].window = 40;
    shape.layers[1].rope = shape.layers[0].rope;
    return shape;
  }() : shape_of(40, 48);
  const std::string full = name + (alike ? " alike" : "");
  if (name == "Whole") {
    CacheShape shape = shape_of(0, 0);
    if (alike) shape.layers[1].rope = shape.layers[0].rope;
    return scene_of(full, shape, {});
  }
  if (name == "Narrow") {
    CacheShape shape = shape_of(8, 25);
    if (alike) shape.layers[1] = shape.layers[0];
    return scene_of(full, shape, {});
  }
  if (name == "Later") return scene_of(full, windows, positions_from(1008));
  if (name == "Odd") return scene_of(full, windows, positions_from(1003));
  if (name == "Gaps") return scene_of(full, windows, positions_with_gaps());
  return scene_of(full, windows, {});
}

// Scenes whose positions no recipe that encodes tokens together accepts.
bool is_uneven(const std::string& scene) {
  return scene == "Odd" || scene == "Gaps";
}

template <SequenceProperty check>
void of_sequence(const CacheSource& source) {
  check(source);
}

// Codes are designed once for each recipe and text.
Result<CacheFactory> factory_of(const std::string& recipe, const Scene& scene) {
  static std::map<std::pair<std::string, std::string>, CacheFactory> made;
  const auto key = std::pair(recipe, scene.name);
  if (const auto known = made.find(key); known != made.end()) return known->second;
  auto factory = CacheFactory::create(scene.text->shape(), recipe, scene.calibration.get());
  if (factory) made.emplace(key, *factory);
  return factory;
}

}  // namespace

const std::vector<CacheProperty>& cache_properties() {
  static const std::vector<CacheProperty> all{
      {"ContinuesAfterLoading", of_sequence<continues_after_loading>, {"Windows", "Later", "Gaps", "Narrow"}},
      {"TruncatesAnywhere", of_sequence<truncates_anywhere>, {"Whole", "Windows", "Gaps", "Narrow"}},
      {"SplitsAlike", of_sequence<splits_alike>, {"Whole", "Windows", "Odd", "Narrow"}},
      {"ForksAreIndependent", of_sequence<forks_are_independent>, {"Windows"}},
      {"ClearsToNew", of_sequence<clears_to_new>, {"Windows"}},
      {"CountsBytes", of_sequence<counts_bytes>, {"Windows"}},
      {"ThreadsAgree", of_sequence<threads_agree>, {"Windows"}, true},
      {"SeesWhatItShould", sees_what_it_should, {"Whole", "Windows", "Later", "Gaps"}},
      {"RejectsWrongCalls", rejects_wrong_calls, {"Windows"}},
      {"SurvivesHalfSteps", survives_half_steps, {"Whole", "Windows"}},
      {"NamesGaps", names_gaps, {"Odd", "Gaps"}},
  };
  return all;
}

std::ostream& operator<<(std::ostream& to, const Case& one) {
  return to << one.recipe << ", " << one.scene;
}

std::vector<Case> all_cases(const std::vector<TableRecipe>& recipes,
                            const std::vector<CacheProperty>& properties) {
  std::vector<Case> cases;
  std::size_t turn = 0;
  for (const TableRecipe& recipe : recipes) {
    const bool tiles = Recipe::parse(recipe.text).value().method().method().tile_tokens > 1;
    for (const CacheProperty& property : properties) {
      if (property.check == names_gaps && !tiles) continue;
      if (property.costly && !recipe.usual && !is_long_run()) continue;
      std::vector<std::string> scenes = property.scenes;
      std::erase_if(scenes, [&](const std::string& scene) {
        return tiles && is_uneven(scene) && property.check != names_gaps;
      });
      if (!recipe.usual && !is_long_run()) scenes = {scenes[turn++ % scenes.size()]};
      for (const std::string& scene : scenes) {
        cases.push_back({property.name + "_" + scene, recipe.text, scene, property.check});
      }
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name + "_" + name_of_recipe(info.param.recipe);
}

void run_case(const Implementation& implementation, const Case& one) {
  // Layers that see differently, or where that cannot be, that see alike.
  Scene scene;
  Result<std::unique_ptr<Caches>> caches = std::unique_ptr<Caches>();
  for (const bool alike : {false, true}) {
    scene = scene_named(one.scene, alike);
    Result<CacheFactory> factory = factory_of(one.recipe, scene);
    if (factory) {
      caches = implementation.make(*factory);
    } else {
      ASSERT_EQ(factory.error().code, ErrorCode::kInvalidArgument) << factory.error().message;
      caches = factory.error();
    }
    if (caches) break;
  }
  if (!caches) GTEST_SKIP() << implementation.name << ": " << caches.error().message;
  const CacheSource source(std::move(*caches), scene);
  one.check(source);
}

}  // namespace kvspan::conformance
