// SPDX-License-Identifier: Apache-2.0
// Saved codes of every recipe: what is accepted makes caches that can be used.
#include "tests/fuzz/framed.h"
#include "tests/fuzz/known_caches.h"
#include "tests/fuzz/steps.h"
#include "tests/fuzz/target.h"

namespace kvspan::fuzz {
namespace {

std::vector<std::byte> saved(const CacheFactory& factory) {
  auto bytes = factory.save_codes();
  must(bytes.has_value(), "save_codes fails: {}", bytes ? "" : bytes.error().message);
  return *std::move(bytes);
}

bool run(std::span<const std::uint8_t> input) {
  KnownCache* const known = known_cache(input);
  if (known == nullptr) return false;
  static const std::vector<std::byte> like = saved(*known->factory());
  const auto factory =
      CacheFactory::load_codes(known->model().shape(), known->recipe(), framed(like, input.subspan(2)));
  if (!factory) return false;
  const auto again = CacheFactory::load_codes(known->model().shape(), known->recipe(), saved(*factory));
  must(again.has_value(), "{}: codes of codes are not loaded: {}", known->recipe(), again ? "" : again.error().message);
  const auto cache = factory->make();
  step(*cache, known->model(), 0, 70);
  step(*cache, known->model(), cache->tokens(), 1);
  if (const auto bytes = cache->save()) (void)factory->load(*bytes);
  return true;
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (KnownCache& known : known_caches()) {
    if (known.factory() != nullptr) all.push_back(unframed(saved(*known.factory()), known.name()));
  }
  return all;
}

}  // namespace

extern const Target codes_target{"codes", "saved codes of every recipe, then steps", 1 << 16, run, seeds};

}  // namespace kvspan::fuzz
