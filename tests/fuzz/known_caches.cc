// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/known_caches.h"

#include <algorithm>

#include "base/byte_stream.h"
#include "tests/fuzz/steps.h"
#include "tests/method/recipes.h"

namespace kvspan::fuzz {
namespace {

constexpr std::int32_t kDim = 8;
constexpr std::uint64_t kSeed = 5;

const Calibration& calibration() {
  static const Calibration made = Model(small_shape(kDim), kSeed).calibration();
  return made;
}

}  // namespace

KnownCache::KnownCache(std::string recipe, std::int32_t window)
    : recipe_(std::move(recipe)), model_(small_shape(kDim, window), kSeed) {}

const CacheFactory* KnownCache::factory() {
  if (!tried_) {
    tried_ = true;
    if (auto made = CacheFactory::create(model_.shape(), recipe_, &calibration())) factory_ = *std::move(made);
  }
  return factory_ ? &*factory_ : nullptr;
}

std::unique_ptr<KvCache> KnownCache::filled() {
  auto cache = factory()->make();
  for (const std::int32_t n : {30, 1, 17, 40, 1, 5}) {
    must(step(*cache, model_, cache->tokens(), n), "{}: a step of {} tokens fails", recipe_, n);
  }
  return cache;
}

Bytes KnownCache::name() const {
  const std::string text = fmt::format("{} {}", recipe_, model_.shape().layers.back().window);
  const std::uint64_t sum = crc64(std::as_bytes(std::span(text)));
  return {static_cast<std::uint8_t>(sum), static_cast<std::uint8_t>(sum >> 8)};
}

std::vector<KnownCache>& known_caches() {
  static std::vector<KnownCache> all = [] {
    std::vector<KnownCache> made;
    for (const std::int32_t window : {0, 40}) {
      for (const testing::SuiteRecipe& recipe : testing::suite_recipes()) made.emplace_back(recipe.text, window);
    }
    return made;
  }();
  return all;
}

KnownCache* known_cache(std::span<const std::uint8_t> input) {
  if (input.size() < 2) return nullptr;
  static const std::vector<std::pair<Bytes, std::size_t>> names = [] {
    std::vector<std::pair<Bytes, std::size_t>> made;
    for (std::size_t i = 0; i < known_caches().size(); ++i) made.emplace_back(known_caches()[i].name(), i);
    std::sort(made.begin(), made.end());
    return made;
  }();
  const Bytes name(input.begin(), input.begin() + 2);
  const auto found = std::lower_bound(names.begin(), names.end(), std::pair(name, std::size_t{0}));
  if (found == names.end() || found->first != name) return nullptr;
  KnownCache& cache = known_caches()[found->second];
  return cache.factory() != nullptr ? &cache : nullptr;
}

}  // namespace kvspan::fuzz
