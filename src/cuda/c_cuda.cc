// SPDX-License-Identifier: Apache-2.0
// kvspan/kvspan_cuda.h.
#include "kvspan/kvspan_cuda.h"

#include <span>
#include <utility>
#include <vector>

#include "api/c_support.h"
#include "kvspan/cuda.h"

using namespace kvspan;
using namespace kvspan::c_api;

struct kvspan_cuda {
  std::unique_ptr<DeviceCache> cache;
};

namespace {

DeviceNumber number_of(kvspan_number number) {
  return number == KVSPAN_F16    ? DeviceNumber::kF16
         : number == KVSPAN_BF16 ? DeviceNumber::kBF16
                                 : DeviceNumber::kF32;
}

// Of a caller's rows, to be read or written.
template <class To, class From>
Result<To> rows_from(const From* given, const char* name) {
  KVSPAN_TRY(const From rows, read_struct<From>(given, name));
  KVSPAN_CHECK_OK(not_null(rows.data, name));
  KVSPAN_CHECK_OK(check_number(rows.number));
  return To{rows.data, number_of(rows.number), rows.token_stride, rows.head_stride};
}

Result<std::vector<DeviceStep>> steps_from(const kvspan_cuda_step* steps, std::int32_t count) {
  if (count < 0) return fail(ErrorCode::kInvalidArgument, "{} steps; allowed: 0 or more", count);
  KVSPAN_TRY(const auto given, read_structs<kvspan_cuda_step>(steps, count, "steps"));
  std::vector<DeviceStep> made;
  for (const kvspan_cuda_step& step : given) made.push_back({step.sequence, step.tokens});
  return made;
}

// What a sequence answers, put where the caller wants it.
template <class T, class Ask>
kvspan_code put_answer(const kvspan_cuda* cache, T* to, const char* name, const Ask& ask) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    KVSPAN_CHECK_OK(not_null(to, name));
    KVSPAN_TRY(*to, ask());
    return {};
  });
}

}  // namespace

kvspan_code kvspan_cuda_create(const kvspan_factory* factory, const kvspan_cuda_options* options,
                               kvspan_cuda** cache) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    *cache = nullptr;
    KVSPAN_CHECK_OK(not_null(factory, "factory"));
    KVSPAN_TRY(const kvspan_cuda_options given, read_struct<kvspan_cuda_options>(options, "options"));
    DeviceOptions made;
    made.budget_bytes = given.budget_bytes;
    if (given.max_sequences != 0) made.max_sequences = given.max_sequences;
    if (given.max_tokens != 0) made.max_tokens = given.max_tokens;
    made.launch_tokens = given.launch_tokens;
    made.rebuild_tokens = given.rebuild_tokens;
    KVSPAN_TRY(auto device, DeviceCache::create(factory->caches, made));
    *cache = new kvspan_cuda{std::move(device)};
    return {};
  });
}

void kvspan_cuda_free(kvspan_cuda* cache) {
  delete cache;
}

kvspan_code kvspan_cuda_add(kvspan_cuda* cache, int32_t* sequence) {
  return put_answer(cache, sequence, "sequence", [&] { return cache->cache->add(); });
}

kvspan_code kvspan_cuda_fork(kvspan_cuda* cache, int32_t sequence, void* stream, int32_t* fork) {
  return put_answer(cache, fork, "fork", [&] { return cache->cache->fork(sequence, stream); });
}

kvspan_code kvspan_cuda_remove(kvspan_cuda* cache, int32_t sequence) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    return cache->cache->remove(sequence);
  });
}

kvspan_code kvspan_cuda_append(kvspan_cuda* cache, int32_t layer, const kvspan_cuda_step* steps,
                               int32_t count, const kvspan_cuda_rows* keys,
                               const kvspan_cuda_rows* values, void* stream) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    KVSPAN_TRY(const auto of, steps_from(steps, count));
    KVSPAN_TRY(const auto k, rows_from<DeviceRows>(keys, "keys"));
    KVSPAN_TRY(const auto v, rows_from<DeviceRows>(values, "values"));
    return cache->cache->append(layer, of, k, v, stream);
  });
}

kvspan_code kvspan_cuda_attend(kvspan_cuda* cache, int32_t layer, const kvspan_cuda_step* steps,
                               int32_t count, const kvspan_cuda_rows* queries,
                               const kvspan_cuda_out* out, void* stream) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    KVSPAN_TRY(const auto of, steps_from(steps, count));
    KVSPAN_TRY(const auto q, rows_from<DeviceRows>(queries, "queries"));
    KVSPAN_TRY(const auto to, rows_from<DeviceOut>(out, "out"));
    return cache->cache->attend(layer, of, q, to, stream);
  });
}

kvspan_code kvspan_cuda_settle(kvspan_cuda* cache, int32_t layer, const kvspan_cuda_step* steps,
                               int32_t count, void* stream) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    KVSPAN_TRY(const auto of, steps_from(steps, count));
    return cache->cache->settle(layer, of, stream);
  });
}

kvspan_code kvspan_cuda_rebuild(kvspan_cuda* cache, int32_t layer, int32_t sequence, int32_t first,
                                const kvspan_cuda_out* keys, const kvspan_cuda_out* values,
                                void* stream) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    KVSPAN_TRY(const auto k, rows_from<DeviceOut>(keys, "keys"));
    KVSPAN_TRY(const auto v, rows_from<DeviceOut>(values, "values"));
    return cache->cache->rebuild(layer, sequence, first, k, v, stream);
  });
}

kvspan_code kvspan_cuda_tokens(const kvspan_cuda* cache, int32_t sequence, int32_t* tokens) {
  return put_answer(cache, tokens, "tokens", [&] { return cache->cache->tokens(sequence); });
}

kvspan_code kvspan_cuda_truncate(kvspan_cuda* cache, int32_t sequence, int32_t n) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    return cache->cache->truncate(sequence, n);
  });
}

kvspan_code kvspan_cuda_least_tokens(const kvspan_cuda* cache, int32_t sequence, int32_t* tokens) {
  return put_answer(cache, tokens, "tokens", [&] { return cache->cache->least_tokens(sequence); });
}

kvspan_code kvspan_cuda_get_bytes(const kvspan_cuda* cache, int32_t sequence, kvspan_bytes* bytes) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    KVSPAN_TRY(const CacheBytes held, cache->cache->bytes(sequence));
    return put_bytes(held, bytes);
  });
}

size_t kvspan_cuda_used_bytes(const kvspan_cuda* cache) {
  return cache == nullptr ? 0 : cache->cache->used_bytes();
}

kvspan_code kvspan_cuda_save(const kvspan_cuda* cache, int32_t sequence, kvspan_sink sink,
                             void* context, void* stream) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    KVSPAN_TRY(const ByteSink to, sink_of(sink, context));
    return cache->cache->save(sequence, to, stream);
  });
}

kvspan_code kvspan_cuda_load(kvspan_cuda* cache, const void* bytes, size_t size, void* stream,
                             int32_t* sequence) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(cache, "cache"));
    KVSPAN_CHECK_OK(not_null(bytes, "bytes"));
    KVSPAN_CHECK_OK(not_null(sequence, "sequence"));
    KVSPAN_TRY(*sequence, cache->cache->load(bytes_of(bytes, size), stream));
    return {};
  });
}
