// SPDX-License-Identifier: Apache-2.0
// The C interface: checks what C callers can get wrong, then calls the C++ one. No exception
// leaves; no wrong argument reaches an expectation that ends the program.
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "base/fail.h"
#include "base/thread_pool.h"
#include "kvspan/cache.h"
#include "kvspan/kvspan.h"

using Scratch = std::unique_ptr<kvspan::AttentionScratch, void (*)(kvspan::AttentionScratch*)>;

struct kvspan_cache {
  kvspan_cache(std::unique_ptr<kvspan::KvCache> held, int threads)
      : cache(std::move(held)), scratch(kvspan::make_attention_scratch()), pool(threads) {}

  std::unique_ptr<kvspan::KvCache> cache;
  Scratch scratch;
  kvspan::ThreadPool pool;
};

namespace kvspan {
namespace {

constexpr std::int32_t kMaxThreads = 256;

std::string& last_error() {
  thread_local std::string text;
  return text;
}

kvspan_code code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return KVSPAN_INVALID_ARGUMENT;
    case ErrorCode::kNotFound:
      return KVSPAN_NOT_FOUND;
    case ErrorCode::kCorruptData:
      return KVSPAN_CORRUPT_DATA;
    case ErrorCode::kUnsupported:
      return KVSPAN_UNSUPPORTED;
    case ErrorCode::kOutOfBudget:
      return KVSPAN_OUT_OF_BUDGET;
    case ErrorCode::kIo:
      return KVSPAN_IO;
    case ErrorCode::kCancelled:
      return KVSPAN_CANCELLED;
  }
  return KVSPAN_INVALID_ARGUMENT;
}

// Runs `body` and turns what comes of it into a status.
template <class Body>
kvspan_code guarded(const Body& body) noexcept {
  try {
    const Status status = body();
    if (status.has_value()) return KVSPAN_OK;
    last_error() = status.error().message;
    return code_of(status.error().code);
  } catch (const std::bad_alloc&) {
    last_error().clear();
    try {
      last_error() = "out of memory";
    } catch (...) {
    }
    return KVSPAN_OUT_OF_BUDGET;
  } catch (const std::exception& error) {
    try {
      last_error() = error.what();
    } catch (...) {
    }
    return KVSPAN_OUT_OF_BUDGET;  // threads that cannot be started, for one
  }
}

Status not_null(const void* pointer, const char* name) {
  if (pointer != nullptr) return {};
  return fail(ErrorCode::kInvalidArgument, "{} is NULL", name);
}

Status check_layer(const kvspan_cache& cache, std::int32_t layer, std::int32_t n) {
  const auto layers = static_cast<std::int32_t>(cache.cache->shape().layers.size());
  if (layer < 0 || layer >= layers) {
    return fail(ErrorCode::kInvalidArgument, "layer {}; allowed: 0 to {}", layer, layers - 1);
  }
  if (n < 0) return fail(ErrorCode::kInvalidArgument, "{} rows; allowed: 0 or more", n);
  return {};
}

Result<LayerShape> shape_of(const kvspan_layer& from) {
  LayerShape shape;
  shape.query_heads = from.query_heads;
  shape.kv_heads = from.kv_heads;
  shape.key_dim = from.key_dim;
  shape.value_dim = from.value_dim;
  shape.window = from.window;
  shape.logit_scale = from.logit_scale;
  shape.soft_cap = from.soft_cap;
  shape.chunk = from.chunk;
  const std::int32_t heads = std::max(from.query_heads, 0);
  if (from.alibi != nullptr) shape.alibi.assign(from.alibi, from.alibi + heads);
  if (from.sinks != nullptr) shape.sinks.assign(from.sinks, from.sinks + heads);
  if (from.rope_dims == 0) return shape;
  if (from.rope_dims < 0 || from.rope_dims % 2 != 0 || from.rope_dims > from.key_dim) {
    return fail(ErrorCode::kInvalidArgument, "rope_dims {}; allowed: even, 0 to key_dim {}",
                from.rope_dims, from.key_dim);
  }
  KVSPAN_CHECK_OK(not_null(from.rope_angles, "rope_angles"));
  shape.rope.pairs =
      from.rope_pairs == KVSPAN_ROPE_HALVES ? Rope::Pairs::kHalves : Rope::Pairs::kNeighbours;
  shape.rope.rotated_dims = from.rope_dims;
  shape.rope.angles.assign(from.rope_angles, from.rope_angles + from.rope_dims / 2);
  shape.rope.magnitude = from.rope_magnitude == 0.0f ? 1.0f : from.rope_magnitude;
  return shape;
}

// What kvspan_create and kvspan_load make caches with.
Result<CacheFactory> factory_of(const kvspan_layer* layers, std::int32_t layer_count,
                                const char* recipe, std::int32_t threads) {
  KVSPAN_CHECK_OK(not_null(layers, "layers"));
  KVSPAN_CHECK_OK(not_null(recipe, "recipe"));
  if (threads < 1 || threads > kMaxThreads) {
    return fail(ErrorCode::kInvalidArgument, "{} threads; allowed: 1 to {}", threads, kMaxThreads);
  }
  CacheShape shape;
  for (std::int32_t i = 0; i < layer_count; ++i) {
    Result<LayerShape> layer = shape_of(layers[i]);
    if (!layer) {
      return fail(layer.error().code, "layer {}: {}", i, layer.error().message);
    }
    shape.layers.push_back(std::move(*layer));
  }
  return CacheFactory::create(shape, recipe);
}

// A call made by the whole pool; the members' outcomes are equal, the leader's is returned.
template <class Call>
Status by_all(ThreadPool& pool, const Call& call) {
  Status outcome;
  pool.run([&](Team& team) {
    Status status = call(team);
    if (team.leader()) outcome = std::move(status);
  });
  return outcome;
}

template <class T>
TensorView<T, 3> rows_of(T* data, std::int32_t n, std::int32_t heads, std::int32_t dim) {
  return {data,
          {static_cast<std::size_t>(n), static_cast<std::size_t>(heads),
           static_cast<std::size_t>(dim)}};
}

}  // namespace
}  // namespace kvspan

using kvspan::fail;

kvspan_code kvspan_create(const kvspan_layer* layers, int32_t layer_count, const char* recipe,
                          int32_t threads, kvspan_cache** cache) {
  return kvspan::guarded([&]() -> kvspan::Status {
    KVSPAN_CHECK_OK(kvspan::not_null(cache, "cache"));
    *cache = nullptr;
    KVSPAN_TRY(const kvspan::CacheFactory factory,
               kvspan::factory_of(layers, layer_count, recipe, threads));
    *cache = new kvspan_cache(factory.make(), threads);
    return {};
  });
}

kvspan_code kvspan_load(const kvspan_layer* layers, int32_t layer_count, const char* recipe,
                        int32_t threads, const void* bytes, size_t size, kvspan_cache** cache) {
  return kvspan::guarded([&]() -> kvspan::Status {
    KVSPAN_CHECK_OK(kvspan::not_null(cache, "cache"));
    *cache = nullptr;
    KVSPAN_CHECK_OK(kvspan::not_null(bytes, "bytes"));
    KVSPAN_TRY(const kvspan::CacheFactory factory,
               kvspan::factory_of(layers, layer_count, recipe, threads));
    KVSPAN_TRY(auto loaded, factory.load({static_cast<const std::byte*>(bytes), size}));
    *cache = new kvspan_cache(std::move(loaded), threads);
    return {};
  });
}

kvspan_code kvspan_save(const kvspan_cache* cache, void* bytes, size_t* size) {
  return kvspan::guarded([&]() -> kvspan::Status {
    KVSPAN_CHECK_OK(kvspan::not_null(cache, "cache"));
    KVSPAN_CHECK_OK(kvspan::not_null(size, "size"));
    KVSPAN_TRY(const auto saved, cache->cache->save());
    const size_t room = std::exchange(*size, saved.size());
    if (bytes == nullptr) return {};
    if (room < saved.size()) {
      return fail(kvspan::ErrorCode::kInvalidArgument, "room for {} bytes; allowed: {} or more",
                  room, saved.size());
    }
    std::memcpy(bytes, saved.data(), saved.size());
    return {};
  });
}

void kvspan_free(kvspan_cache* cache) {
  delete cache;
}

kvspan_code kvspan_append(kvspan_cache* cache, int32_t layer, int32_t n, const float* keys,
                          const float* values, const int32_t* positions) {
  return kvspan::guarded([&]() -> kvspan::Status {
    KVSPAN_CHECK_OK(kvspan::not_null(cache, "cache"));
    KVSPAN_CHECK_OK(kvspan::check_layer(*cache, layer, n));
    if (n == 0) return {};
    KVSPAN_CHECK_OK(kvspan::not_null(keys, "keys"));
    KVSPAN_CHECK_OK(kvspan::not_null(values, "values"));
    KVSPAN_CHECK_OK(kvspan::not_null(positions, "positions"));
    const kvspan::LayerShape& shape = cache->cache->shape().layers[static_cast<size_t>(layer)];
    kvspan::KvRows rows;
    rows.positions = {positions, static_cast<size_t>(n)};
    rows.keys = kvspan::rows_of(keys, n, shape.kv_heads, shape.key_dim);
    rows.values = kvspan::rows_of(values, n, shape.kv_heads, shape.value_dim);
    return kvspan::by_all(
        cache->pool, [&](kvspan::Team& team) { return cache->cache->append(layer, rows, team); });
  });
}

kvspan_code kvspan_attend(kvspan_cache* cache, int32_t layer, int32_t n, const float* queries,
                          const int32_t* positions, float* out) {
  return kvspan::guarded([&]() -> kvspan::Status {
    KVSPAN_CHECK_OK(kvspan::not_null(cache, "cache"));
    KVSPAN_CHECK_OK(kvspan::check_layer(*cache, layer, n));
    if (n == 0) return {};
    KVSPAN_CHECK_OK(kvspan::not_null(queries, "queries"));
    KVSPAN_CHECK_OK(kvspan::not_null(positions, "positions"));
    KVSPAN_CHECK_OK(kvspan::not_null(out, "out"));
    const kvspan::LayerShape& shape = cache->cache->shape().layers[static_cast<size_t>(layer)];
    kvspan::Queries asked;
    asked.positions = {positions, static_cast<size_t>(n)};
    asked.rows = kvspan::rows_of(queries, n, shape.query_heads, shape.key_dim);
    return kvspan::by_all(cache->pool, [&](kvspan::Team& team) {
      return cache->cache->attend(layer, asked,
                                  kvspan::rows_of(out, n, shape.query_heads, shape.value_dim),
                                  *cache->scratch, team);
    });
  });
}

kvspan_code kvspan_settle(kvspan_cache* cache, int32_t layer) {
  return kvspan::guarded([&]() -> kvspan::Status {
    KVSPAN_CHECK_OK(kvspan::not_null(cache, "cache"));
    KVSPAN_CHECK_OK(kvspan::check_layer(*cache, layer, 0));
    return kvspan::by_all(cache->pool,
                          [&](kvspan::Team& team) { return cache->cache->settle(layer, team); });
  });
}

kvspan_code kvspan_fork(const kvspan_cache* cache, kvspan_cache** fork) {
  return kvspan::guarded([&]() -> kvspan::Status {
    KVSPAN_CHECK_OK(kvspan::not_null(fork, "fork"));
    *fork = nullptr;
    KVSPAN_CHECK_OK(kvspan::not_null(cache, "cache"));
    KVSPAN_TRY(auto held, cache->cache->fork());
    *fork = new kvspan_cache(std::move(held), cache->pool.size());
    return {};
  });
}

kvspan_code kvspan_truncate(kvspan_cache* cache, int32_t n) {
  return kvspan::guarded([&]() -> kvspan::Status {
    KVSPAN_CHECK_OK(kvspan::not_null(cache, "cache"));
    if (n < 0) {
      return fail(kvspan::ErrorCode::kInvalidArgument, "truncate to {}; allowed: 0 or more", n);
    }
    return cache->cache->truncate(n);
  });
}

int32_t kvspan_tokens(const kvspan_cache* cache) {
  return cache == nullptr ? 0 : cache->cache->tokens();
}

int32_t kvspan_least_tokens(const kvspan_cache* cache) {
  return cache == nullptr ? 0 : cache->cache->least_tokens();
}

kvspan_code kvspan_get_bytes(const kvspan_cache* cache, kvspan_bytes* bytes) {
  return kvspan::guarded([&]() -> kvspan::Status {
    KVSPAN_CHECK_OK(kvspan::not_null(cache, "cache"));
    KVSPAN_CHECK_OK(kvspan::not_null(bytes, "bytes"));
    const kvspan::CacheBytes held = cache->cache->bytes();
    *bytes = {held.full_rank, held.coefficients, held.scales, held.bases,
              held.sketches,  held.positions,    held.shared, held.total};
    return {};
  });
}

const char* kvspan_last_error(void) {
  return kvspan::last_error().c_str();
}
