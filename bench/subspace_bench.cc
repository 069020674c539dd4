// SPDX-License-Identifier: Apache-2.0
// What a tracker costs per token of one head, amortised over the shrinks, steps and passes it
// makes.
#include <benchmark/benchmark.h>

#include <cmath>

#include "base/random.h"
#include "subspace/frequent_directions.h"
#include "subspace/gram_tracker.h"
#include "subspace/oja.h"
#include "subspace/residual.h"

namespace kvspan {
namespace {

constexpr std::size_t kRows = 4096;

// A spectrum that falls by 40 dB in random directions, as keys and values do.
Matrix make_rows(std::size_t d) {
  Random random(1);
  Matrix mixing(d, d), rows(kRows, d);
  for (std::size_t i = 0; i < d * d; ++i) mixing.data()[i] = static_cast<float>(random.normal());
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t t = 0; t < d; ++t) {
      const double share =
          random.normal() * std::pow(10.0, -2.0 * static_cast<double>(t) / static_cast<double>(d));
      for (std::size_t j = 0; j < d; ++j) rows(i, j) += static_cast<float>(share * mixing(t, j));
    }
  }
  return rows;
}

// Feeds `step` rows a call, again and again.
void feed(benchmark::State& state, Tracker& tracker, std::size_t step) {
  const Matrix rows = make_rows(tracker.dim());
  std::size_t at = 0;
  for (auto _ : state) {
    for (std::size_t i = 0; i < 256; i += step) {
      const Status status = tracker.update(MatrixView(rows.row(at), {step, rows.cols()}));
      if (!status) state.SkipWithError(status.error().message.c_str());
      at = (at + step) % kRows;
    }
  }
  state.counters["us_per_token"] =
      benchmark::Counter(256e-6 * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["bytes"] = static_cast<double>(tracker.bytes());
}

void BM_frequent_directions(benchmark::State& state) {
  auto tracker = FrequentDirections::create(
      static_cast<std::size_t>(state.range(0)),
      {.sketch_rows = static_cast<std::size_t>(state.range(1))}, nullptr);
  feed(state, **tracker, static_cast<std::size_t>(state.range(2)));
}
BENCHMARK(BM_frequent_directions)
    ->ArgNames({"d", "l", "rows"})
    ->Args({64, 32, 1})
    ->Args({64, 32, 32})
    ->Args({64, 64, 1})
    ->Args({128, 32, 1})
    ->Args({128, 64, 1});

void BM_oja(benchmark::State& state) {
  auto tracker = OjaTracker::create(static_cast<std::size_t>(state.range(0)),
                                    {.rank = static_cast<std::size_t>(state.range(1)),
                                     .batch_rows = static_cast<std::size_t>(state.range(2))},
                                    std::nullopt, nullptr);
  feed(state, **tracker, 1);
}
BENCHMARK(BM_oja)
    ->ArgNames({"d", "r", "batch"})
    ->Args({64, 16, 32})
    ->Args({128, 16, 32})
    ->Args({128, 32, 32})
    ->Args({64, 16, 1});

void BM_gram(benchmark::State& state) {
  auto tracker = GramTracker::create(static_cast<std::size_t>(state.range(0)),
                                     {.decay = state.range(2) ? 0.999 : 1.0}, nullptr);
  feed(state, **tracker, static_cast<std::size_t>(state.range(1)));
}
BENCHMARK(BM_gram)
    ->ArgNames({"d", "rows", "decay"})
    ->Args({64, 1, 0})
    ->Args({64, 32, 0})
    ->Args({64, 32, 1})
    ->Args({128, 1, 0})
    ->Args({128, 32, 0})
    ->Args({384, 32, 0});

void BM_frequent_directions_basis(benchmark::State& state) {
  const Matrix rows = make_rows(static_cast<std::size_t>(state.range(0)));
  auto tracker = FrequentDirections::create(
      rows.cols(), {.sketch_rows = static_cast<std::size_t>(state.range(1))}, nullptr);
  (void)(*tracker)->update(rows.view());
  for (auto _ : state) benchmark::DoNotOptimize((*tracker)->basis(16).squared);
}
BENCHMARK(BM_frequent_directions_basis)
    ->ArgNames({"d", "l"})
    ->Args({64, 32})
    ->Args({128, 32})
    ->Args({128, 64})
    ->Unit(benchmark::kMicrosecond);

void BM_project(benchmark::State& state) {
  const Matrix rows = make_rows(static_cast<std::size_t>(state.range(0)));
  auto tracker = FrequentDirections::create(rows.cols(), {.sketch_rows = 32}, nullptr);
  (void)(*tracker)->update(rows.view());
  const Basis basis = (*tracker)->basis(16);
  std::vector<float> c(16);
  std::size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(project({rows.row(at), rows.cols()}, basis.rows.view(), c));
    at = (at + 1) % kRows;
  }
}
BENCHMARK(BM_project)->ArgNames({"d"})->Args({64})->Args({128});

}  // namespace
}  // namespace kvspan

BENCHMARK_MAIN();
