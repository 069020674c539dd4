// SPDX-License-Identifier: Apache-2.0
// Products of a query with the mean of keys, turned to a block of positions and folded to polynomials in the order of
// the device, against the host's sums of the query turned to that block.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "cuda/attend_constants.h"
#include "cuda/bands/bands_operands.h"

namespace kvspan::testing {
namespace {

Rope rope_of(int pairs, double base) {
  Rope rope;
  rope.pairs = Rope::Pairs::kHalves;
  rope.rotated_dims = 2 * pairs;
  for (int j = 0; j < pairs; ++j) rope.angles.push_back(std::pow(base, -double(j) / pairs));
  return rope;
}

// Of the host's eight sums, the k-th in the order of columns: even ones from the second on, odd ones, the first.
double sum_of(const AnchoredMeans& means, const std::vector<float>& folded, int k) {
  const bool odd = k >= 3 && k < 7;
  const int order = odd ? k - 3 : (k + 1) % 8;
  return folded[std::size_t((odd ? means.pairs() : 0) + means.alone() + order)];
}

TEST(MeanOperands, PolynomialsOfProductsAreThoseOfTheQueryTurnedToABlock) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const auto& [pairs, base] : {std::pair{64, 5e5}, {128, 1e6}, {32, 1e5}, {32, 1e4}, {24, 1e4}}) {
    const Rope rope = rope_of(pairs, base);
    const int dim = 2 * pairs;
    std::vector<float> mu(std::size_t(dim), 0.0f), q(std::size_t(dim), 0.0f);
    for (float& x : mu) x = normal(random);
    for (float& x : q) x = normal(random);
    const AnchoredMeans means(rope, cuda::kMeanBlock, mu.data(), 1, dim, MemoryKind::kShared, nullptr);
    const cuda::MeanOperands mean = cuda::mean_operands(means);
    ASSERT_GT(mean.slow, 0) << pairs << " pairs, base " << base;
    ASSERT_EQ(mean.polynomials.size(), std::size_t((mean.slow + 7) / 8 * 128));
    for (const int block : {0, 1, 17, 1023}) {
      std::vector<float> u = q, folded(std::size_t(means.sums()));
      double most = 0.0;  // of what is added up
      for (int j = 0; j < pairs; ++j) {
        const double at = rope.angles[std::size_t(j)] * (block + 0.5) * cuda::kMeanBlock;
        const double c = std::cos(at), s = std::sin(at), x = q[std::size_t(j)], y = q[std::size_t(j + pairs)];
        u[std::size_t(j)] = float(x * c + y * s);
        u[std::size_t(j + pairs)] = float(y * c - x * s);
        if (j >= mean.alone) {
          most += std::hypot(x, y) * std::hypot(means.mean(0)[j], means.mean(0)[j + pairs]);
        }
      }
      means.fold(0, u.data(), folded.data());
      for (int column = 0; column < 8; ++column) {
        const bool odd = cuda::odd_polynomial(column);
        double sum = 0.0;
        for (int j = 0; j < mean.slow; ++j) {
          const auto own = std::size_t(mean.alone + j), other = own + std::size_t(pairs);
          const double p = means.mean(0)[own], r = means.mean(0)[other];
          const double w[2] = {q[own] * p + q[other] * r, q[other] * p - q[own] * r};
          const double at = rope.angles[own] * (block + 0.5) * cuda::kMeanBlock, c = std::cos(at), s = std::sin(at);
          const float* const by = &mean.polynomials[std::size_t(((j / 8 * 32) + 4 * column + j % 4) * 2 + j % 8 / 4) * 2];
          sum += by[0] * w[0] * (odd ? s : c) + by[1] * w[1] * (odd ? c : s);
        }
        EXPECT_NEAR(sum, sum_of(means, folded, column), 1e-5 * most)
            << pairs << " pairs, base " << base << ", block " << block << ", column " << column;
      }
    }
  }
}

}  // namespace
}  // namespace kvspan::testing
