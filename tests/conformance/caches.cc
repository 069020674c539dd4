// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/caches.h"

#include <algorithm>
#include <limits>

#include "api/prepared_of.h"
#include "method/check_call.h"
#include "recipe/recipe.h"

namespace kvspan::conformance {

Traits traits_of(const CacheFactory& host) {
  const Prepared& prepared = *prepared_of(host);
  Traits traits;
  const Recipe recipe = Recipe::parse(prepared.recipe).value();
  for (const RecipePart& part : recipe.parts()) {
    traits.drops = traits.drops || part.method().tokens == TokenUse::kDropsSome;
    traits.reads_some = traits.reads_some || part.method().tokens == TokenUse::kReadsSome;
  }
  traits.tile = static_cast<std::int32_t>(recipe.method().method().tile_tokens);
  traits.row_limit = std::numeric_limits<float>::infinity();
  for (const PreparedLayer& layer : prepared.layers) {
    for (const PreparedGroup& group : layer.groups) {
      if (group.make_selector || group.observed_queries > 0) traits.observes = true;
      if (group.options.ends == Element::kF16) traits.row_limit = kF16Limit;
    }
  }
  // Who looks at attention learns of calls, too.
  traits.splits = !traits.observes;
  traits.keeps_all = !traits.drops;
  for (const LayerShape& layer : prepared.shape.layers) {
    if (layer.window > 0 || layer.chunk > 0) traits.keeps_all = false;
  }
  return traits;
}

Result<std::unique_ptr<Caches>> host_caches(CacheFactory host) {
  return std::make_unique<Caches>(std::move(host));
}

CacheSource::CacheSource(std::shared_ptr<const Caches> caches, Scene scene, int threads)
    : caches_(std::move(caches)),
      scene_(std::move(scene)),
      traits_(traits_of(caches_->host())),
      pool_(std::make_shared<ThreadPool>(threads)) {
  caches_->limit(traits_);
}

std::unique_ptr<Sequence> CacheSource::make() const {
  return std::make_unique<CacheSequence>(*this, new_cache());
}

Result<std::unique_ptr<Sequence>> CacheSource::load(std::span<const std::byte> bytes) const {
  auto loaded = load_cache(bytes);
  if (!loaded) return std::move(loaded).error();
  return std::unique_ptr<Sequence>(std::make_unique<CacheSequence>(*this, std::move(*loaded)));
}

std::unique_ptr<Source> CacheSource::with_threads(int threads) const {
  return std::make_unique<CacheSource>(caches_, scene_, threads);
}

LayerStep::LayerStep(const CacheSource& from, int of, std::int32_t begin, std::int32_t count)
    : source(from), layer(of), first(begin), n(count) {
  const LayerShape& shape = from.text().shape().layers[std::size_t(of)];
  out.assign(std::size_t(count) * std::size_t(shape.query_heads * shape.value_dim), 0.0f);
}

Status LayerStep::append(KvCache& cache) {
  const KvRows rows = source.text().rows(std::size_t(layer), first, n);
  return by_all(source.pool(), [&](Team& team) { return cache.append(layer, rows, team); });
}

Status LayerStep::attend(KvCache& cache) {
  const LayerShape& shape = source.text().shape().layers[std::size_t(layer)];
  const Queries queries = source.text().queries(std::size_t(layer), first, n);
  const TensorView<float, 3> to(
      out.data(), {std::size_t(n), std::size_t(shape.query_heads), std::size_t(shape.value_dim)});
  return by_all(source.pool(), [&](Team& team) {
    return cache.attend(layer, queries, to, *scratch, team);
  });
}

Status LayerStep::settle(KvCache& cache) {
  return by_all(source.pool(), [&](Team& team) { return cache.settle(layer, team); });
}

Status CacheSequence::step(std::int32_t n, std::vector<float>& out) {
  const std::span<const std::int32_t> all = source_.positions();
  const auto first = std::int32_t(std::lower_bound(all.begin(), all.end(), tokens()) - all.begin());
  for (std::size_t layer = 0; layer < source_.text().shape().layers.size(); ++layer) {
    LayerStep step(source_, int(layer), first, n);
    if (Status failed = step.append(*cache_); !failed) return failed;
    if (Status failed = step.attend(*cache_); !failed) return failed;
    if (Status failed = step.settle(*cache_); !failed) return failed;
    out.insert(out.end(), step.out.begin(), step.out.end());
  }
  return {};
}

Result<std::unique_ptr<Sequence>> CacheSequence::fork() const {
  auto copy = source_.caches().fork(*cache_);
  if (!copy) return std::move(copy).error();
  return std::unique_ptr<Sequence>(std::make_unique<CacheSequence>(source_, std::move(*copy)));
}

}  // namespace kvspan::conformance
