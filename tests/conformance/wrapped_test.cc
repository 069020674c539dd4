// SPDX-License-Identifier: Apache-2.0
// Caches that stand before another one (api/wrapped_cache.h) and pass its calls on.
#include "api/wrapped_cache.h"
#include "tests/conformance/cache_properties.h"

namespace kvspan::conformance {
namespace {

class Passing final : public WrappedCache {
 public:
  using WrappedCache::WrappedCache;
};

class WrappedCaches final : public Caches {
 public:
  using Caches::Caches;
  std::unique_ptr<KvCache> make(int) const override { return wrap(host().make()); }
  // What is before a cache is not saved or copied with it.
  Result<std::unique_ptr<KvCache>> load(std::span<const std::byte> bytes, int) const override {
    return wrapped(host().load(bytes));
  }
  Result<std::vector<std::byte>> save(const KvCache& cache) const override {
    return inner(cache).save();
  }
  Result<std::unique_ptr<KvCache>> fork(const KvCache& cache) const override {
    return wrapped(cache.fork());
  }
  const MethodCache* inside(const KvCache& cache) const override {
    return dynamic_cast<const MethodCache*>(&inner(cache));
  }

 private:
  static const KvCache& inner(const KvCache& cache) {
    return dynamic_cast<const WrappedCache&>(cache).wrapped();
  }
  static std::unique_ptr<KvCache> wrap(std::unique_ptr<KvCache> cache) {
    return std::make_unique<Passing>(std::move(cache));
  }
  static Result<std::unique_ptr<KvCache>> wrapped(Result<std::unique_ptr<KvCache>> cache) {
    if (!cache) return cache;
    return wrap(std::move(cache).value());
  }
};

Result<std::unique_ptr<Caches>> wrapped_caches(CacheFactory host) {
  return std::unique_ptr<Caches>(std::make_unique<WrappedCaches>(std::move(host)));
}
constexpr Implementation kWrapped{"wrapped", wrapped_caches};

class Wrapped : public ::testing::TestWithParam<Case> {};
TEST_P(Wrapped, Conform) {
  run_case(kWrapped, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Of, Wrapped,
                         ::testing::ValuesIn(all_cases(recipes_of_stores(), cache_properties())),
                         case_name);

}  // namespace
}  // namespace kvspan::conformance
