// SPDX-License-Identifier: Apache-2.0
// Attention over a full-rank cache, beside what the machine can do at best in the same run. Rates
// are those of the median pass, by processor time (bench/machine.h).
//   decode   one query over 8K tokens, layers in turn so that nothing stays in a cache.
//            of_memory: bytes of keys and values read a second / measured memory bandwidth (GB/s)
//            of_fma: arithmetic of the two products / measured FMA peak of all threads
//   prefill  512 queries over 8K tokens, whole attention; and its two matrix products alone.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "attention/kernels/kernels.h"
#include "attention/segments/plan.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "bench/machine.h"
#include "kvspan/cache.h"

namespace kvspan {
namespace {

constexpr std::int32_t kTokens = 8192;

int all_threads() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::vector<float> random_floats(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>(random.uniform() - 0.5);
  return values;
}

// A cache of `layers` equal layers that holds kTokens random tokens.
struct Filled {
  std::unique_ptr<KvCache> cache;
  ThreadPool pool;

  Filled(int query_heads, int kv_heads, int dim, int layers, int threads) : pool(threads) {
    CacheShape shape;
    LayerShape layer;
    layer.query_heads = query_heads;
    layer.kv_heads = kv_heads;
    layer.key_dim = layer.value_dim = dim;
    layer.logit_scale = 1.0f / std::sqrt(static_cast<float>(dim));
    shape.layers.assign(static_cast<std::size_t>(layers), layer);
    cache = std::move(make_cache(shape, "full").value());
    const auto heads = static_cast<std::size_t>(kv_heads), d = static_cast<std::size_t>(dim);
    const std::vector<float> rows = random_floats(kTokens * heads * d, 1);
    std::vector<std::int32_t> positions(kTokens);
    for (std::int32_t t = 0; t < kTokens; ++t) positions[static_cast<std::size_t>(t)] = t;
    const TensorView<const float, 3> view(rows.data(), {kTokens, heads, d});
    pool.run([&](Team& team) {
      for (int i = 0; i < layers; ++i) {
        (void)cache->append(i, {view, view, positions}, team);
      }
    });
  }
};

void attend(benchmark::State& state, int layers, std::size_t queries) {
  const int query_heads = static_cast<int>(state.range(0));
  const int kv_heads = static_cast<int>(state.range(1));
  const int dim = static_cast<int>(state.range(2));
  const int threads = static_cast<int>(state.range(3));
  Filled filled(query_heads, kv_heads, dim, layers, threads);
  const auto heads = static_cast<std::size_t>(query_heads), d = static_cast<std::size_t>(dim);
  const std::vector<float> rows = random_floats(queries * heads * d, 2);
  std::vector<float> out(rows.size());
  std::vector<std::int32_t> positions(queries);
  for (std::size_t i = 0; i < queries; ++i) {
    positions[i] = kTokens - static_cast<std::int32_t>(queries - i);
  }
  const auto scratch = make_attention_scratch();
  std::vector<double> seconds;
  for (auto _ : state) {
    const double start = bench::busy_seconds();
    filled.pool.run([&](Team& team) {
      for (int i = 0; i < layers; ++i) {
        (void)filled.cache->attend(i, {{rows.data(), {queries, heads, d}}, positions},
                                   {out.data(), {queries, heads, d}}, *scratch, team);
      }
    });
    seconds.push_back((bench::busy_seconds() - start) / threads);
    benchmark::ClobberMemory();
  }
  std::nth_element(seconds.begin(), seconds.begin() + std::ptrdiff_t(seconds.size() / 2),
                   seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double bytes =
      static_cast<double>(full_rank_f16_bytes(filled.cache->shape(), kTokens)) / median;
  const double seen = kTokens - 0.5 * static_cast<double>(queries - 1);  // tokens per query
  const double flops =
      layers * static_cast<double>(queries) * query_heads * seen * dim * 4.0 / median;
  state.counters["us_layer"] = median * 1e6 / layers;
  state.counters["GFLOPS"] = flops * 1e-9;
  state.counters["of_fma"] = flops / (bench::fma_flops_per_second() * threads);
  if (queries == 1) {
    const double peak = bench::memory_bytes_per_second(threads);
    state.counters["GB/s"] = bytes * 1e-9;
    state.counters["memory"] = peak * 1e-9;
    state.counters["of_memory"] = bytes / peak;
  }
}

void decode(benchmark::State& state) {
  attend(state, static_cast<int>(state.range(4)), 1);
}
void few_queries(benchmark::State& state) {
  attend(state, static_cast<int>(state.range(4)), 8);
}
void prefill(benchmark::State& state) {
  attend(state, static_cast<int>(state.range(4)), 512);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"q", "kv", "d", "threads", "layers"});
  for (const int threads : {1, all_threads()}) {
    b->Args({9, 3, 64, threads, 16});
    b->Args({32, 8, 128, threads, 4});
  }
  b->UseRealTime()->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK(decode)->Apply(shapes);
BENCHMARK(few_queries)->Apply(shapes);
void prefill_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"q", "kv", "d", "threads", "layers"});
  for (const int threads : {1, all_threads()}) {
    b->Args({9, 3, 64, threads, 1});
    b->Args({32, 8, 128, threads, 1});
  }
  b->UseRealTime()->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK(prefill)->Apply(prefill_shapes);

void set_product_counters(benchmark::State& state, double flops) {
  using benchmark::Counter;
  const double total = flops * static_cast<double>(state.iterations());
  state.counters["GFLOPS"] = Counter(total * 1e-9, Counter::kIsRate);
  state.counters["of_fma"] = Counter(total / bench::fma_flops_per_second(), Counter::kIsRate);
}

void score_panels(benchmark::State& state) {
  const auto dim = static_cast<std::int32_t>(state.range(0));
  const std::vector<float> q = random_floats(static_cast<std::size_t>(kBlockRows * dim), 1);
  const std::vector<float> k = random_floats(static_cast<std::size_t>(kPanelTokens * dim), 2);
  std::vector<float> s(static_cast<std::size_t>(kBlockRows * kPanelTokens));
  const AttentionKernels& kernels = attention_kernels(cpu_level());
  for (auto _ : state) {
    kernels.score_panels(q.data(), kBlockRows, dim, k.data(), kPanelTokens, s.data());
    benchmark::ClobberMemory();
  }
  set_product_counters(state, 2.0 * kBlockRows * kPanelTokens * dim);
}
void weigh_panels(benchmark::State& state) {
  const auto dim = static_cast<std::int32_t>(state.range(0));
  const std::vector<float> w = random_floats(static_cast<std::size_t>(kBlockRows * kPanelTokens), 1);
  const std::vector<float> v = random_floats(static_cast<std::size_t>(kPanelTokens * dim), 2);
  const std::vector<float> decay(kBlockRows, 0.5f);
  std::vector<float> out(static_cast<std::size_t>(kBlockRows * dim));
  const AttentionKernels& kernels = attention_kernels(cpu_level());
  for (auto _ : state) {
    kernels.weigh_panels(w.data(), kBlockRows, v.data(), dim, kPanelTokens, decay.data(), out.data());
    benchmark::ClobberMemory();
  }
  set_product_counters(state, 2.0 * kBlockRows * kPanelTokens * dim);
}
BENCHMARK(score_panels)->Arg(64)->Arg(128);
BENCHMARK(weigh_panels)->Arg(64)->Arg(128);

// Keys and values in the L1 cache: what the arithmetic of decode alone allows.
void score_rows(benchmark::State& state) {
  const auto dim = static_cast<std::int32_t>(state.range(0));
  const auto rows = static_cast<std::int32_t>(state.range(1));
  const std::vector<float> q = random_floats(static_cast<std::size_t>(rows * dim), 1);
  const std::vector<std::uint16_t> k(static_cast<std::size_t>(64 * dim), 0x3800);
  std::vector<float> s(static_cast<std::size_t>(rows * 64));
  const AttentionKernels& kernels = attention_kernels(cpu_level());
  const RowsView view{reinterpret_cast<const std::byte*>(k.data()), dim, Element::kF16};
  for (auto _ : state) {
    kernels.score_rows(q.data(), rows, dim, view, 64, nullptr, s.data(), 64);
    benchmark::ClobberMemory();
  }
  set_product_counters(state, 2.0 * rows * 64 * dim);
}
void weigh_rows(benchmark::State& state) {
  const auto dim = static_cast<std::int32_t>(state.range(0));
  const auto rows = static_cast<std::int32_t>(state.range(1));
  const std::vector<float> w = random_floats(static_cast<std::size_t>(rows * 64), 1);
  const std::vector<std::uint16_t> v(static_cast<std::size_t>(64 * dim), 0x1800);
  std::vector<float> out(static_cast<std::size_t>(rows * dim));
  const AttentionKernels& kernels = attention_kernels(cpu_level());
  const RowsView view{reinterpret_cast<const std::byte*>(v.data()), dim, Element::kF16};
  for (auto _ : state) {
    kernels.weigh_rows(w.data(), 64, rows, view, dim, 64, nullptr, out.data());
    benchmark::ClobberMemory();
  }
  set_product_counters(state, 2.0 * rows * 64 * dim);
}
BENCHMARK(score_rows)->ArgsProduct({{16, 32, 48, 64, 128}, {1, 2, 3, 4, 8}});
BENCHMARK(weigh_rows)->ArgsProduct({{16, 32, 48, 64, 128}, {1, 2, 3, 4, 8}});

// The same with integer coefficients.
void score_codes(benchmark::State& state) {
  const auto dim = static_cast<std::int32_t>(state.range(0));
  const auto rows = static_cast<std::int32_t>(state.range(1));
  const std::vector<std::int16_t> q(static_cast<std::size_t>(rows * dim), 1234);
  const std::vector<std::int8_t> k(static_cast<std::size_t>(64 * dim), 56);
  const std::vector<float> scale(64, 0.5f);
  std::vector<float> s(static_cast<std::size_t>(rows * 64));
  const AttentionKernels& kernels = attention_kernels(cpu_level());
  for (auto _ : state) {
    kernels.score_codes({q.data(), dim, scale.data()}, rows, dim, {k.data(), dim, scale.data()}, 64,
                        false, s.data(), 64);
    benchmark::ClobberMemory();
  }
  set_product_counters(state, 2.0 * rows * 64 * dim);
}
void weigh_codes(benchmark::State& state) {
  const auto dim = static_cast<std::int32_t>(state.range(0));
  const auto rows = static_cast<std::int32_t>(state.range(1));
  const std::vector<float> w = random_floats(static_cast<std::size_t>(rows * 64), 1);
  const std::vector<std::int8_t> v(static_cast<std::size_t>(64 * dim), 56);
  const std::vector<float> scale(64, 0.5f);
  std::vector<float> out(static_cast<std::size_t>(rows * dim));
  const AttentionKernels& kernels = attention_kernels(cpu_level());
  for (auto _ : state) {
    kernels.weigh_codes(w.data(), 64, rows, {v.data(), dim, scale.data()}, dim, 64, out.data(),
                        dim);
    benchmark::ClobberMemory();
  }
  set_product_counters(state, 2.0 * rows * 64 * dim);
}
BENCHMARK(score_codes)->ArgsProduct({{16, 32, 64, 128}, {1, 2, 3, 4}});
BENCHMARK(weigh_codes)->ArgsProduct({{16, 32, 64, 128}, {1, 2, 3, 4}});

void soften(benchmark::State& state) {
  const std::vector<float> from = random_floats(3 * 256, 1);
  std::vector<float> s(from.size());
  const AttentionKernels& kernels = attention_kernels(cpu_level());
  for (auto _ : state) {
    s = from;
    for (std::size_t r = 0; r < 3; ++r) {
      float max = -1e30f;
      benchmark::DoNotOptimize(kernels.soften_row(s.data() + r * 256, 256, &max));
    }
  }
  state.counters["ns_per_weight"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * 768e-9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(soften);

}  // namespace
}  // namespace kvspan

BENCHMARK_MAIN();
