// SPDX-License-Identifier: Apache-2.0
// kvspan/kvspan_moments.h.
#include <utility>

#include "api/c_support.h"
#include "kvspan/kvspan_moments.h"
#include "kvspan/moments.h"

using namespace kvspan;
using namespace kvspan::c_api;

struct kvspan_moments {
  MomentCollector collector;
  CacheShape shape;
  ThreadPool pool;
  WideRows keys = {}, values = {}, queries = {};

  kvspan_moments(MomentCollector gathers, CacheShape of, int threads)
      : collector(std::move(gathers)), shape(std::move(of)), pool(threads) {}
};

namespace {

Result<const LayerShape*> layer_of(const kvspan_moments* moments, std::int32_t layer) {
  KVSPAN_CHECK_OK(not_null(moments, "moments"));
  const auto& layers = moments->shape.layers;
  if (layer >= 0 && static_cast<std::size_t>(layer) < layers.size()) {
    return &layers[static_cast<std::size_t>(layer)];
  }
  return fail(ErrorCode::kInvalidArgument, "layer {}; allowed: 0 to {}", layer, layers.size() - 1);
}

}  // namespace

kvspan_code kvspan_moments_create(const kvspan_moments_options* options, kvspan_moments** moments) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(moments, "moments"));
    *moments = nullptr;
    KVSPAN_TRY(const kvspan_moments_options given, read_struct<kvspan_moments_options>(options, "options"));
    KVSPAN_TRY(CacheShape shape, shape_of(given.layers, given.layer_count));
    // What a factory would refuse is refused before any work.
    KVSPAN_TRY(const CacheFactory checked, CacheFactory::create(shape, "full"));
    MomentOptions to;
    if (given.window != 0) to.window = given.window;
    to.skip = given.skip;
    to.tokens = given.tokens;
    if (given.samples != 0) to.samples = given.samples;
    if (given.block != 0) to.block = given.block;
    to.neighbours = given.neighbours;
    const std::int32_t threads = given.threads == 0 ? 1 : given.threads;
    KVSPAN_CHECK_OK(check_threads(threads));
    KVSPAN_TRY(MomentCollector collector, MomentCollector::create(shape, to));
    *moments = new kvspan_moments(std::move(collector), std::move(shape), threads);
    return {};
  });
}

void kvspan_moments_free(kvspan_moments* moments) {
  delete moments;
}

kvspan_code kvspan_moments_set_output(kvspan_moments* moments, int32_t layer, int32_t hidden,
                                      const float* weights) {
  return guarded([&]() -> Status {
    KVSPAN_TRY(const LayerShape* shape, layer_of(moments, layer));
    KVSPAN_CHECK_OK(not_null(weights, "weights"));
    if (hidden < 1)
      return fail(ErrorCode::kInvalidArgument, "hidden {}; allowed: 1 or more", hidden);
    OutputWeights to;
    to.rows = {weights,
               {static_cast<std::size_t>(hidden), static_cast<std::size_t>(shape->query_heads) *
                                                      static_cast<std::size_t>(shape->value_dim)}};
    return moments->collector.set_output(layer, to);
  });
}

kvspan_code kvspan_moments_add(kvspan_moments* moments, int32_t layer, int32_t n,
                               kvspan_number number, const void* keys, const void* values,
                               const void* queries, const int32_t* positions, const float* residual,
                               int32_t hidden) {
  return guarded([&]() -> Status {
    KVSPAN_TRY(const LayerShape* shape, layer_of(moments, layer));
    KVSPAN_CHECK_OK(check_number(number));
    if (n < 0) return fail(ErrorCode::kInvalidArgument, "{} rows; allowed: 0 or more", n);
    if (n == 0) return {};
    KVSPAN_CHECK_OK(not_null(keys, "keys"));
    KVSPAN_CHECK_OK(not_null(values, "values"));
    KVSPAN_CHECK_OK(not_null(queries, "queries"));
    KVSPAN_CHECK_OK(not_null(positions, "positions"));
    if (residual != nullptr && hidden < 1) {
      return fail(ErrorCode::kInvalidArgument, "hidden {}; allowed: 1 or more", hidden);
    }
    const std::span<const std::int32_t> at(positions, static_cast<std::size_t>(n));
    ThreadPool& pool = moments->pool;
    KvRows rows;
    rows.positions = at;
    rows.keys = moments->keys.of(keys, number, n, shape->kv_heads, shape->key_dim, pool);
    rows.values = moments->values.of(values, number, n, shape->kv_heads, shape->value_dim, pool);
    Queries asked;
    asked.positions = at;
    asked.rows = moments->queries.of(queries, number, n, shape->query_heads, shape->key_dim, pool);
    const auto add = [&](Team& team) -> Status {
      KVSPAN_CHECK_OK(moments->collector.add_rows(layer, rows, team));
      return moments->collector.add_queries(layer, asked, team);
    };
    KVSPAN_CHECK_OK(by_all(pool, add));
    if (residual != nullptr) {
      moments->collector.add_layer_input(
          layer, {residual, {static_cast<std::size_t>(n), static_cast<std::size_t>(hidden)}}, at);
    }
    return {};
  });
}

kvspan_code kvspan_moments_finish(const kvspan_moments* moments, const char* model,
                                  const char* fingerprint, kvspan_sink sink, void* context) {
  return guarded([&]() -> Status {
    KVSPAN_CHECK_OK(not_null(moments, "moments"));
    KVSPAN_CHECK_OK(not_null(model, "model"));
    KVSPAN_CHECK_OK(not_null(fingerprint, "fingerprint"));
    KVSPAN_TRY(const ByteSink to, sink_of(sink, context));
    KVSPAN_TRY(const Calibration calibration, moments->collector.finish(model, fingerprint));
    KVSPAN_TRY(const auto bytes, encode_calibration(calibration));
    return to(bytes);
  });
}
