// SPDX-License-Identifier: Apache-2.0
#include "codec/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "every_level.h"

namespace kvspan {
namespace {

std::vector<float> random_row(Random& random, std::size_t d) {
  std::vector<float> x(d);
  for (auto& v : x) v = static_cast<float>(random.normal());
  return x;
}

double norm(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

TEST(Hadamard, BlockIsTheLargestPowerOfTwoDividingTheSize) {
  EXPECT_EQ(hadamard_block(64), 64u);
  EXPECT_EQ(hadamard_block(80), 16u);
  EXPECT_EQ(hadamard_block(96), 32u);
  EXPECT_EQ(hadamard_block(7), 1u);
  EXPECT_EQ(hadamard_block(0), 0u);
}

// Entry (i, j) of Sylvester's matrix is (-1)^popcount(i & j). Every component of the fast transform
// is a sum of 2^k terms made by k additions: its error is at most (k + 2) 2^-24 sum |x_j| 2^(-k/2)
// (the factor and its product round too).
TEST(Hadamard, EqualsTheMatrixByDefinition) {
  Random random(21);
  at_every_level([&](CpuLevel) {
    for (const std::size_t d :
         {1u, 2u, 4u, 6u, 8u, 16u, 32u, 48u, 64u, 80u, 96u, 128u, 256u, 512u}) {
      const auto x = random_row(random, d);
      auto y = x;
      hadamard_rotate(y.data(), d);
      const std::size_t size = hadamard_block(d);
      const int k = std::countr_zero(size);
      for (std::size_t i = 0; i < d; ++i) {
        const std::size_t block = i / size * size;
        double sum = 0, magnitude = 0;
        for (std::size_t j = 0; j < size; ++j) {
          const double v = x[block + j] * std::pow(2.0, -0.5 * k);
          sum += std::popcount((i - block) & j) % 2 ? -v : v;
          magnitude += std::abs(v);
        }
        EXPECT_NEAR(y[i], sum, (k + 2) * 0x1p-24 * magnitude) << "d " << d << ", i " << i;
      }
    }
  });
}

// |Hx| and |x| differ by at most the error above in every component: (k + 2) 2^-24 |x|_1 2^(-k/2)
// <= (k + 2) 2^-24 |x|_2, times sqrt(2^k) components at worst.
TEST(Hadamard, KeepsTheNormAndUndoesItself) {
  Random random(22);
  at_every_level([&](CpuLevel) {
    for (const std::size_t d : {2u, 16u, 64u, 96u, 128u, 1024u, 4096u}) {
      const std::size_t size = hadamard_block(d);
      const double bound =
          (std::countr_zero(size) + 2) * 0x1p-24 * std::sqrt(static_cast<double>(size));
      const auto x = random_row(random, d);
      auto y = x;
      hadamard_rotate(y.data(), d);
      EXPECT_NEAR(norm(y), norm(x), bound * norm(x)) << d;
      hadamard_rotate(y.data(), d);
      double squares = 0;
      for (std::size_t i = 0; i < d; ++i) squares += std::pow(double{y[i]} - x[i], 2);
      EXPECT_LE(std::sqrt(squares), 2 * bound * norm(x)) << d;
    }
  });
}

TEST(Hadamard, EveryLevelGivesTheSameBitsAtAnyAlignment) {
  Random random(23);
  at_every_level([&](CpuLevel level) {
    for (std::size_t size = 1; size <= 2048; size *= 2) {
      const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
      auto x = random_row(random, size + 1), y = x;
      detail::hadamard_ref(x.data() + 1, size, factor);
      detail::hadamard_kernel(level)(y.data() + 1, size, factor);
      EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)), 0) << size;
    }
  });
}

TEST(Hadamard, RotatesStridedRowsAndNothingBetweenThem) {
  std::vector<float> x(3 * 10, 1.0f);
  hadamard_rotate(TensorView<float, 2>(x.data(), {3, 8}, {10, 1}));
  for (std::size_t r = 0; r < 3; ++r) {
    EXPECT_NEAR(x[10 * r], std::sqrt(8.0), 1e-6);
    for (std::size_t i = 1; i < 8; ++i) EXPECT_EQ(x[10 * r + i], 0.0f);
    EXPECT_EQ(x[10 * r + 8], 1.0f);
    EXPECT_EQ(x[10 * r + 9], 1.0f);
  }
}

}  // namespace
}  // namespace kvspan
