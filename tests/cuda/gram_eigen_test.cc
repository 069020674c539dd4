// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kvspan/cuda.h"
#include "linalg/symmetric_eigen.h"
#include "tests/cuda/device_run.h"

namespace kvspan {
namespace {

struct GramCase {
  int heads, tokens, dim;
  double decay;  // of the columns' size, one to the next
};

// Rows [tokens, heads, dim] whose directions differ in size as those of real keys do.
std::vector<float> gram_rows(const GramCase& c, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<std::size_t>(c.heads * c.tokens * c.dim));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const int column = static_cast<int>(i) % c.dim;
    rows[i] = normal(random) * static_cast<float>(std::pow(c.decay, column)) + (column == 0 ? 1.0f : 0.0f);
  }
  return rows;
}

// All of a head against the host, in f64, from the same rows. Sums of `tokens` products in f32 are off by
// at most tokens eps sqrt(G_ii G_jj), which moves an eigenvalue by no more than tokens eps trace(G); an
// eigensolver that is stable adds a small multiple of dim eps |G|.
void expect_eigen(const GramCase& c, int head, const std::vector<float>& rows, const float* values,
                  const float* vectors) {
  const auto n = static_cast<std::size_t>(c.dim);
  MatrixD G(n, n);
  double trace = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = 0.0;
      for (int t = 0; t < c.tokens; ++t) {
        const float* const row = rows.data() + static_cast<std::size_t>((t * c.heads + head) * c.dim);
        sum += static_cast<double>(row[i]) * row[j];
      }
      G(i, j) = G(j, i) = sum;
    }
    trace += G(i, i);
  }
  const SymmetricEigen host = symmetric_eigen(G.view()).value();
  const double eps = std::ldexp(1.0, -24), bound = (c.tokens + 8.0 * c.dim) * eps;
  for (std::size_t i = 0; i < n; ++i) {
    EXPECT_NEAR(values[i], host.values[n - 1 - i], bound * trace) << "head " << head << ", value " << i;
    const float* const v = vectors + i * n;
    double residual = 0.0;
    for (std::size_t r = 0; r < n; ++r) {
      double sum = -static_cast<double>(values[i]) * v[r];
      for (std::size_t k = 0; k < n; ++k) sum += G(r, k) * v[k];
      residual += sum * sum;
    }
    EXPECT_LE(std::sqrt(residual), 2.0 * bound * trace) << "head " << head << ", vector " << i;
    for (std::size_t j = 0; j <= i; ++j) {
      double dot = 0.0;
      for (std::size_t k = 0; k < n; ++k) dot += static_cast<double>(v[k]) * vectors[j * n + k];
      EXPECT_NEAR(dot, i == j ? 1.0 : 0.0, 8.0 * c.dim * eps) << "head " << head << ", " << i << ", " << j;
    }
  }
}

TEST(GramEigen, AsOnTheHost) {
  KVSPAN_NEEDS_DEVICE();
  for (const GramCase& c : {GramCase{8, 512, 128, 0.97}, {3, 40, 64, 0.9}, {2, 16, 48, 1.0}, {1, 1, 8, 1.0}}) {
    SCOPED_TRACE(::testing::Message() << c.heads << " heads of " << c.dim << ", " << c.tokens << " rows");
    // Two layers, f32 and f16.
    auto solver = DeviceGramEigen::create(2 * c.heads, c.dim).value();
    const std::vector<float> first = gram_rows(c, 1), second = gram_rows(c, 2);
    std::vector<__half> halves;
    std::vector<float> rounded;
    for (const float x : second) {
      halves.push_back(__float2half(x));
      rounded.push_back(__half2float(halves.back()));
    }
    const testing::DeviceArray<float> on_first{std::span<const float>(first)};
    const testing::DeviceArray<__half> on_second{std::span<const __half>(halves)};
    ASSERT_TRUE(solver->gram(0, c.heads, c.tokens, {on_first.data(), DeviceNumber::kF32}, nullptr));
    ASSERT_TRUE(solver->gram(c.heads, c.heads, c.tokens, {on_second.data(), DeviceNumber::kF16}, nullptr));
    ASSERT_TRUE(solver->solve(nullptr));
    ASSERT_TRUE(solver->wait(nullptr));
    const auto n = static_cast<std::size_t>(c.dim), blocks = static_cast<std::size_t>(2 * c.heads);
    std::vector<float> values(blocks * n), vectors(blocks * n * n);
    ASSERT_EQ(cudaMemcpy(values.data(), solver->values(), values.size() * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(vectors.data(), solver->vectors(), vectors.size() * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    for (std::size_t b = 0; b < blocks; ++b) {
      const int head = static_cast<int>(b) % c.heads;
      expect_eigen(c, head, static_cast<int>(b) < c.heads ? first : rounded, values.data() + b * n,
                   vectors.data() + b * n * n);
    }
  }
}

TEST(GramEigen, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(DeviceGramEigen::create(0, 128));
  EXPECT_FALSE(DeviceGramEigen::create(4, 2048));
  KVSPAN_NEEDS_DEVICE();
  auto solver = DeviceGramEigen::create(4, 16).value();
  const testing::DeviceArray<float> rows(4 * 16);
  EXPECT_FALSE(solver->gram(2, 3, 1, {rows.data(), DeviceNumber::kF32}, nullptr));
  EXPECT_FALSE(solver->gram(-1, 1, 1, {rows.data(), DeviceNumber::kF32}, nullptr));
  EXPECT_FALSE(solver->gram(0, 1, 0, {rows.data(), DeviceNumber::kF32}, nullptr));
}

}  // namespace
}  // namespace kvspan
