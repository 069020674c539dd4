// SPDX-License-Identifier: Apache-2.0
// Saved caches of every recipe. What is loaded is safe to go on with, and what it saves is loaded again.
#include "tests/fuzz/framed.h"
#include "tests/fuzz/known_caches.h"
#include "tests/fuzz/steps.h"
#include "tests/fuzz/target.h"

namespace kvspan::fuzz {
namespace {

std::vector<std::byte> saved(const KvCache& cache) {
  auto bytes = cache.save();
  must(bytes.has_value(), "save fails: {}", bytes ? "" : bytes.error().message);
  return *std::move(bytes);
}

bool run(std::span<const std::uint8_t> input) {
  KnownCache* const known = known_cache(input);
  if (known == nullptr) return false;
  static const std::vector<std::byte> like = saved(*known->factory()->make());
  const auto loaded = known->factory()->load(framed(like, input.subspan(2)));
  if (!loaded) return false;
  const auto again = known->factory()->load(saved(**loaded));
  must(again.has_value(), "{}: what a loaded cache saves is not loaded: {}", known->recipe(),
       again ? "" : again.error().message);
  go_on(**loaded, known->model());
  return true;
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (KnownCache& known : known_caches()) {
    if (known.factory() != nullptr) all.push_back(unframed(saved(*known.filled()), known.name()));
  }
  return all;
}

}  // namespace

extern const Target saved_cache_target{"saved_cache", "saved caches of every recipe, then steps", 1 << 16, run, seeds};

}  // namespace kvspan::fuzz
