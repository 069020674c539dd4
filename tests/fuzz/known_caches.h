// SPDX-License-Identifier: Apache-2.0
// Caches of every recipe of the method tests (tests/method/recipes.h) in two shapes, each made when it is first asked for.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvspan/cache.h"
#include "tests/fuzz/model.h"
#include "tests/fuzz/target.h"

namespace kvspan::fuzz {

class KnownCache {
 public:
  KnownCache(std::string recipe, std::int32_t window);

  const std::string& recipe() const noexcept { return recipe_; }
  const Model& model() const noexcept { return model_; }
  // Null where the recipe does not go with the shape.
  const CacheFactory* factory();
  // A cache that has read a text: some tokens coded, some waiting.
  std::unique_ptr<KvCache> filled();
  // Two bytes that stay the same when recipes are added.
  Bytes name() const;

 private:
  std::string recipe_;
  Model model_;
  std::optional<CacheFactory> factory_;
  bool tried_ = false;
};

std::vector<KnownCache>& known_caches();
// The one that the input begins with; null: none.
KnownCache* known_cache(std::span<const std::uint8_t> input);

}  // namespace kvspan::fuzz
