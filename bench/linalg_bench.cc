// SPDX-License-Identifier: Apache-2.0
// Eigenproblems of many small Grams: kvspan's solver beside Eigen's in f64 and f32.
#include <benchmark/benchmark.h>

#include <Eigen/Eigenvalues>
#include <cmath>
#include <vector>

#include "base/random.h"
#include "linalg/symmetric_eigen.h"

namespace kvspan {
namespace {

constexpr int kGrams = 90;  // 30 layers of 3 KV heads

// Grams of 2n rows whose spectrum falls by 40 dB, as activations' do.
std::vector<MatrixD> make_grams(std::size_t n) {
  Random random(1);
  std::vector<MatrixD> grams;
  for (int g = 0; g < kGrams; ++g) {
    MatrixD A(2 * n, n), G(n, n);
    for (std::size_t i = 0; i < 2 * n; ++i) {
      double common = random.normal();
      for (std::size_t j = 0; j < n; ++j) {
        A(i, j) = std::pow(10.0, -2.0 * double(j) / double(n)) * (random.normal() + common);
      }
    }
    for (std::size_t t = 0; t < 2 * n; ++t) {
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) G(i, j) += A(t, i) * A(t, j);
      }
    }
    grams.push_back(std::move(G));
  }
  return grams;
}

void BM_eigen_of_90_grams_kvspan_f64(benchmark::State& state) {
  const auto grams = make_grams(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    for (const auto& G : grams) benchmark::DoNotOptimize(symmetric_eigen(G.view()).value().values);
  }
}
BENCHMARK(BM_eigen_of_90_grams_kvspan_f64)
    ->Arg(32)
    ->Arg(64)
    ->Arg(128)
    ->Unit(benchmark::kMillisecond);

template <class T>
void BM_eigen_of_90_grams_eigen(benchmark::State& state) {
  using M = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
  const auto n = static_cast<std::size_t>(state.range(0));
  std::vector<M> grams;
  for (const auto& G : make_grams(n)) {
    grams.push_back(Eigen::Map<const Eigen::MatrixXd>(G.data(), n, n).template cast<T>());
  }
  Eigen::SelfAdjointEigenSolver<M> solver;
  for (auto _ : state) {
    for (const auto& G : grams) {
      solver.compute(G);
      benchmark::DoNotOptimize(solver.eigenvectors().data());
    }
  }
}
BENCHMARK_TEMPLATE(BM_eigen_of_90_grams_eigen, double)
    ->Arg(32)
    ->Arg(64)
    ->Arg(128)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_TEMPLATE(BM_eigen_of_90_grams_eigen, float)
    ->Arg(32)
    ->Arg(64)
    ->Arg(128)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvspan

BENCHMARK_MAIN();
