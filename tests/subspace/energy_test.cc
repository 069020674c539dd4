// SPDX-License-Identifier: Apache-2.0
// |k|^2 = |Bk|^2 + |(I-P)k|^2, with a guard against cancellation.
#include <gtest/gtest.h>

#include <cmath>

#include "linalg/qr.h"
#include "subspace/energy_rank.h"
#include "subspace/residual.h"
#include "tests/linalg/eigen_oracle.h"
#include "tests/subspace/streams.h"

namespace kvspan {
namespace {

constexpr double kUnit = 0x1p-24;

// The exact squared residual of x [d, 1] against the span of the columns of Q.
double exact_residual(const MatrixD& x, const MatrixD& Q) {
  return squared_norm(sum(x, -1.0, product(Q, product(transposed(Q), x))));
}

// An orthonormal basis in f64 of the row space of B, as columns.
MatrixD span_of(MatrixView B) {
  return householder_qr(transposed(dense(B))).Q;
}

// Rounding the rows of B and c to f32 moves Bx by at most (sqrt(r) + 1) 2^-24 |x| in all, hence
// |Bx|^2 by twice that times |Bx|; for r <= 16: 10 2^-24 = 6e-7 at the very worst. The direct
// branch sees a vector off by 2 (sqrt(r) + 1) 2^-24 |x|.
void expect_residual(std::span<const float> x, MatrixView B, const MatrixD& Q,
                     const std::string& name) {
  std::vector<float> c(B.shape[0]);
  const double found = project(x, B, c);
  const MatrixD exact_x = transposed(dense(MatrixView(x.data(), {1, x.size()})));
  const double exact = exact_residual(exact_x, Q);
  const double whole = squared_norm(exact_x);
  const double turn = (std::sqrt(static_cast<double>(c.size())) + 1.0) * kUnit;
  EXPECT_GE(found, 0.0) << name;
  if (exact > 2.0 * kCancellationGuard * whole) {
    EXPECT_NEAR(found, exact, 2.1 * turn * whole) << name;
  } else if (exact < 0.1 * kCancellationGuard * whole) {
    const double most = std::sqrt(exact) + 2.1 * turn * std::sqrt(whole);
    EXPECT_LE(found, most * most) << name;
    const double least = std::max(std::sqrt(exact) - 2.1 * turn * std::sqrt(whole), 0.0);
    EXPECT_GE(found, least * least) << name;
  }
  EXPECT_EQ(found, residual_squared(x, c, B)) << name;
}

TEST(Energy, TheEnergyIdentityHoldsOnEveryStream) {
  for (const std::size_t d : {3u, 16u, 64u}) {
    for (const Stream& stream : all_streams(60, d, d)) {
      const std::size_t dim = stream.rows.cols();
      for (const std::size_t r : {std::size_t{1}, dim / 4, dim / 2}) {
        if (r == 0 || r > 16) continue;
        Random random(r);
        const Matrix B = *orthonormal_rows(gaussian_rows(r, dim, random).view());
        const MatrixD Q = span_of(B.view());
        for (std::size_t i = 0; i < stream.rows.rows(); ++i) {
          expect_residual({stream.rows.row(i), dim}, B.view(), Q, stream.name);
        }
      }
    }
  }
}

// Vectors that leave the span by 10^-1 .. 10^-9 of their length: the difference of squares alone
// would be noise from 10^-3.5 on.
TEST(Energy, SmallResidualsAreNotLostToCancellation) {
  Random random(7);
  const std::size_t d = 48, r = 12;
  const Matrix B = *orthonormal_rows(gaussian_rows(r, d, random).view());
  const MatrixD Q = span_of(B.view());
  for (int power = 1; power <= 9; ++power) {
    for (const double scale : {1e-3, 1.0, 1e3}) {
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::vector<float> x(d);
        std::vector<double> exact(d);
        for (std::size_t i = 0; i < r; ++i) {
          const double c = random.normal();
          for (std::size_t j = 0; j < d; ++j) exact[j] += c * B(i, j);
        }
        for (std::size_t j = 0; j < d; ++j) {
          x[j] = static_cast<float>(scale * (exact[j] + std::pow(10.0, -power) * random.normal()));
        }
        expect_residual(x, B.view(), Q, "10^-" + std::to_string(power));
      }
    }
  }
}

TEST(Energy, VectorsWithinTheSpanLeaveNothingAndOthersEverything) {
  Matrix B(2, 4);
  B(0, 1) = B(1, 3) = 1.0f;
  const float inside[] = {0.0f, 3.0f, 0.0f, -4.0f}, outside[] = {1.0f, 0.0f, 2.0f, 0.0f};
  const float nothing[4] = {};
  std::vector<float> c(2);
  EXPECT_EQ(project(inside, B.view(), c), 0.0);
  EXPECT_EQ(c, (std::vector<float>{3.0f, -4.0f}));
  EXPECT_EQ(project(outside, B.view(), c), 5.0);
  EXPECT_EQ(project(nothing, B.view(), c), 0.0);
}

TEST(EnergyRank, IsTheSmallestThatHoldsTheShare) {
  const std::vector<double> squared{8.0, 4.0, 2.0, 1.0, 1.0, 0.0};
  EXPECT_EQ(rank_for_energy(squared, 0.5), 1u);
  EXPECT_EQ(rank_for_energy(squared, 0.51), 2u);
  EXPECT_EQ(rank_for_energy(squared, 0.75), 2u);
  EXPECT_EQ(rank_for_energy(squared, 0.95), 5u);
  EXPECT_EQ(rank_for_energy(squared, 1.0), 5u);
  EXPECT_EQ(rank_for_energy(squared, 32.0, 0.5), 5u);  // a sketch that holds half of the energy
  EXPECT_EQ(rank_for_energy(squared, 32.0, 0.6), 6u);
  EXPECT_EQ(rank_for_energy(std::vector<double>{0.0, 0.0}, 0.9), 0u);
  EXPECT_EQ(rank_for_energy({}, 0.9), 0u);
}

}  // namespace
}  // namespace kvspan
