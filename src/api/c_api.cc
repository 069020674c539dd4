// SPDX-License-Identifier: Apache-2.0
// kvspan/kvspan.h.
#include "kvspan/kvspan.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "api/c_support.h"
#include "api/version.h"
#include "kvspan/calibration.h"

using namespace kvspan;
using namespace kvspan::c_api;

struct kvspan_cache {
  kvspan_cache(std::unique_ptr<KvCache> held, int threads)
      : cache(std::move(held)), scratch(make_attention_scratch()), pool(threads) {}

  std::unique_ptr<KvCache> cache;
  std::unique_ptr<AttentionScratch, void (*)(AttentionScratch*)> scratch;
  ThreadPool pool;
  WideRows keys, values, queries;
  BatchMemory batch;  // of batches whose first part it is
};

namespace {

Status check_layer(const kvspan_cache& cache, std::int32_t layer, std::int32_t n) {
  const auto layers = static_cast<std::int32_t>(cache.cache->shape().layers.size());
  if (layer < 0 || layer >= layers) {
    return fail(ErrorCode::kInvalidArgument, "layer {}; allowed: 0 to {}", layer, layers - 1);
  }
  if (n < 0) return fail(ErrorCode::kInvalidArgument, "{} rows; allowed: 0 or more", n);
  return {};
}

const LayerShape& layer_of(const kvspan_cache& cache, std::int32_t layer) {
  return cache.cache->shape().layers[static_cast<std::size_t>(layer)];
}

Result<CacheFactory> factory_of(const kvspan_factory_options& options) {
  KVSPAN_CHECK_OK(not_null(options.recipe, "recipe"));
  KVSPAN_TRY(const CacheShape shape, shape_of(options.layers, options.layer_count));
  if (options.codes != nullptr) {
    return CacheFactory::load_codes(shape, options.recipe,
                                    bytes_of(options.codes, options.codes_size));
  }
  if (options.calibration == nullptr) return CacheFactory::create(shape, options.recipe);
  KVSPAN_TRY(
      const Calibration calibration,
      decode_calibration(bytes_of(options.calibration, options.calibration_size), "calibration"));
  DesignProgress progress;
  if (options.progress != nullptr) {
    progress = [&](std::size_t done, std::size_t total) {
      return options.progress(options.progress_context, done, total) == 0;
    };
  }
  return CacheFactory::create(shape, options.recipe, &calibration, progress);
}

// A part of a batch, checked and as the C++ interface takes it.
Result<SequenceStep> step_of(const kvspan_part& part, std::int32_t layer, ThreadPool& pool) {
  KVSPAN_CHECK_OK(not_null(part.cache, "cache"));
  KVSPAN_CHECK_OK(check_layer(*part.cache, layer, part.n));
  KVSPAN_CHECK_OK(check_number(part.number));
  if (part.n == 0) return fail(ErrorCode::kInvalidArgument, "0 rows; allowed: 1 or more");
  for (const auto& [pointer, name] : {std::pair<const void*, const char*>(part.keys, "keys"),
                                      {part.values, "values"},
                                      {part.queries, "queries"},
                                      {part.positions, "positions"},
                                      {part.out, "out"}}) {
    KVSPAN_CHECK_OK(not_null(pointer, name));
  }
  const LayerShape& shape = layer_of(*part.cache, layer);
  SequenceStep step;
  const std::span<const std::int32_t> positions(part.positions, static_cast<std::size_t>(part.n));
  step.rows.keys =
      part.cache->keys.of(part.keys, part.number, part.n, shape.kv_heads, shape.key_dim, pool);
  step.rows.values = part.cache->values.of(part.values, part.number, part.n, shape.kv_heads,
                                           shape.value_dim, pool);
  step.rows.positions = positions;
  step.queries.rows = part.cache->queries.of(part.queries, part.number, part.n, shape.query_heads,
                                             shape.key_dim, pool);
  step.queries.positions = positions;
  step.out = rows_of(part.out, part.n, shape.query_heads, shape.value_dim);
  return step;
}

}  // namespace

uint32_t kvspan_version(void) {
  return version_number();
}

const char* kvspan_version_text(void) {
  return version_string();
}

const char* kvspan_last_error(void) {
  return last_error().c_str();
}

kvspan_code kvspan_needs_calibration(const char* recipe, int32_t* needed) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(recipe, "recipe"));
    KVSPAN_CHECK_OK(not_null(needed, "needed"));
    KVSPAN_TRY(const bool found, needs_calibration(recipe));
    *needed = found ? 1 : 0;
    return {};
  });
}

kvspan_code kvspan_factory_create(const kvspan_factory_options* options, kvspan_factory** factory) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(factory, "factory"));
    *factory = nullptr;
    KVSPAN_TRY(const kvspan_factory_options given, read_struct<kvspan_factory_options>(options, "options"));
    KVSPAN_TRY(CacheFactory caches, factory_of(given));
    *factory = new kvspan_factory{std::move(caches)};
    return {};
  });
}

void kvspan_factory_free(kvspan_factory* factory) {
  delete factory;
}

const char* kvspan_factory_recipe(const kvspan_factory* factory) {
  return factory == nullptr ? nullptr : factory->caches.recipe().c_str();
}

kvspan_code kvspan_factory_save_codes(const kvspan_factory* factory, kvspan_sink sink,
                                      void* context) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(factory, "factory"));
    KVSPAN_TRY(const ByteSink to, sink_of(sink, context));
    KVSPAN_TRY(const auto codes, factory->caches.save_codes());
    return to(codes);
  });
}

kvspan_code kvspan_make(const kvspan_factory* factory, int32_t threads, kvspan_cache** cache) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    *cache = nullptr;
    KVSPAN_CHECK_OK(not_null(factory, "factory"));
    KVSPAN_CHECK_OK(check_threads(threads));
    *cache = new kvspan_cache(factory->caches.make(), threads);
    return {};
  });
}

kvspan_code kvspan_load(const kvspan_factory* factory, int32_t threads, const void* bytes,
                        size_t size, kvspan_cache** cache) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    *cache = nullptr;
    KVSPAN_CHECK_OK(not_null(factory, "factory"));
    KVSPAN_CHECK_OK(check_threads(threads));
    KVSPAN_CHECK_OK(not_null(bytes, "bytes"));
    KVSPAN_TRY(auto loaded, factory->caches.load(bytes_of(bytes, size)));
    *cache = new kvspan_cache(std::move(loaded), threads);
    return {};
  });
}

kvspan_code kvspan_save(const kvspan_cache* cache, kvspan_sink sink, void* context) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    KVSPAN_TRY(const ByteSink to, sink_of(sink, context));
    return cache->cache->save(to);
  });
}

void kvspan_free(kvspan_cache* cache) {
  delete cache;
}

kvspan_code kvspan_append(kvspan_cache* cache, int32_t layer, int32_t n, kvspan_number number,
                          const void* keys, const void* values, const int32_t* positions) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    KVSPAN_CHECK_OK(check_layer(*cache, layer, n));
    KVSPAN_CHECK_OK(check_number(number));
    if (n == 0) return {};
    KVSPAN_CHECK_OK(not_null(keys, "keys"));
    KVSPAN_CHECK_OK(not_null(values, "values"));
    KVSPAN_CHECK_OK(not_null(positions, "positions"));
    const LayerShape& shape = layer_of(*cache, layer);
    KvRows rows;
    rows.positions = {positions, static_cast<size_t>(n)};
    rows.keys = cache->keys.of(keys, number, n, shape.kv_heads, shape.key_dim, cache->pool);
    rows.values = cache->values.of(values, number, n, shape.kv_heads, shape.value_dim, cache->pool);
    return by_all(cache->pool, [&](Team& team) { return cache->cache->append(layer, rows, team); });
  });
}

kvspan_code kvspan_attend(kvspan_cache* cache, int32_t layer, int32_t n, kvspan_number number,
                          const void* queries, const int32_t* positions, float* out) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    KVSPAN_CHECK_OK(check_layer(*cache, layer, n));
    KVSPAN_CHECK_OK(check_number(number));
    if (n == 0) return {};
    KVSPAN_CHECK_OK(not_null(queries, "queries"));
    KVSPAN_CHECK_OK(not_null(positions, "positions"));
    KVSPAN_CHECK_OK(not_null(out, "out"));
    const LayerShape& shape = layer_of(*cache, layer);
    Queries asked;
    asked.positions = {positions, static_cast<size_t>(n)};
    asked.rows =
        cache->queries.of(queries, number, n, shape.query_heads, shape.key_dim, cache->pool);
    return by_all(cache->pool, [&](Team& team) {
      return cache->cache->attend(layer, asked, rows_of(out, n, shape.query_heads, shape.value_dim),
                                  *cache->scratch, team);
    });
  });
}

kvspan_code kvspan_settle(kvspan_cache* cache, int32_t layer) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    KVSPAN_CHECK_OK(check_layer(*cache, layer, 0));
    return by_all(cache->pool, [&](Team& team) { return cache->cache->settle(layer, team); });
  });
}

kvspan_code kvspan_step(int32_t layer, const kvspan_part* parts, int32_t count) {
  return guarded([&]() -> Status {
    if (count == 0) return {};
    if (count < 0) return fail(ErrorCode::kInvalidArgument, "{} parts; allowed: 0 or more", count);
    KVSPAN_TRY(const std::vector<kvspan_part> given, read_structs<kvspan_part>(parts, count, "parts"));
    const kvspan_part& first = given.front();
    KVSPAN_CHECK_OK(not_null(first.cache, "cache"));
    ThreadPool& pool = first.cache->pool;
    std::vector<SequenceStep> steps;
    std::vector<SequenceTokens> sequences;
    for (const kvspan_part& part : given) {
      Result<SequenceStep> step = step_of(part, layer, pool);
      if (!step) return fail(step.error().code, "part {}: {}", steps.size(), step.error().message);
      KvCache* const cache = part.cache->cache.get();
      if (std::any_of(sequences.begin(), sequences.end(),
                      [&](const SequenceTokens& of) { return of.cache == cache; })) {
        return fail(ErrorCode::kInvalidArgument, "part {}: its cache is there twice", steps.size());
      }
      steps.push_back(*std::move(step));
      sequences.push_back({cache, part.n});
    }
    SequenceBatch batch(sequences, pool.size(), first.cache->batch);
    const auto part_of = [&](std::size_t i) { return steps[i]; };
    return by_all(pool, [&](Team& team) { return batch.step(layer, part_of, team); });
  });
}

kvspan_code kvspan_fork(const kvspan_cache* cache, kvspan_cache** fork) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(fork, "fork"));
    *fork = nullptr;
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    KVSPAN_TRY(auto held, cache->cache->fork());
    *fork = new kvspan_cache(std::move(held), cache->pool.size());
    return {};
  });
}

kvspan_code kvspan_truncate(kvspan_cache* cache, int32_t n) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    if (n < 0) return fail(ErrorCode::kInvalidArgument, "truncate to {}; allowed: 0 or more", n);
    return cache->cache->truncate(n);
  });
}

kvspan_code kvspan_clear(kvspan_cache* cache) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    cache->cache->clear();
    return {};
  });
}

int32_t kvspan_tokens(const kvspan_cache* cache) {
  return cache == nullptr ? 0 : cache->cache->tokens();
}

int32_t kvspan_least_tokens(const kvspan_cache* cache) {
  return cache == nullptr ? 0 : cache->cache->least_tokens();
}

kvspan_code kvspan_get_bytes(const kvspan_cache* cache, kvspan_bytes* bytes) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    return put_bytes(cache->cache->bytes(), bytes);
  });
}
