// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare.h"

#include <gtest/gtest.h>

#include "analysis/sensitivity.h"
#include "tests/analysis/fixtures/reference.h"
#include "tests/analysis/reference_rows.h"

namespace kvspan::testing {
namespace {

SymmetricEigen eigen_of(std::uint32_t seed) {
  return symmetric_eigen(moment_of(reference_rows(seed)).view()).value();
}
// Directions i, i + 1, .. of the axes, with these energies.
SymmetricEigen axes(const std::vector<std::size_t>& order, const std::vector<double>& values) {
  SymmetricEigen out{values, MatrixD(order.size(), order.size())};
  for (std::size_t i = 0; i < order.size(); ++i) out.vectors(i, order[i]) = 1.0;
  return out;
}

// Directions of a moment with gap g turn by its rounding over g; the gaps at rank 3 exceed 1e-3 of
// the largest eigenvalue, so 1e-10 leaves room.
TEST(Compare, AgreesWithScipyOnRows) {
  const Comparison found = compare(eigen_of(11), eigen_of(23), kReferenceRank);
  EXPECT_NEAR(found.overlap, kReferenceOverlap, 1e-10);
  EXPECT_NEAR(found.retained, kReferenceRetained, 1e-10);
  EXPECT_NEAR(found.rer, kReferenceRer, 1e-10);
}

TEST(Compare, ASpaceWithItselfOverlapsAndKeepsAll) {
  const SymmetricEigen A = eigen_of(11);
  for (std::size_t r = 1; r <= kReferenceDim; ++r) {
    const Comparison found = compare(A, A, r);
    EXPECT_NEAR(found.overlap, 1.0, 1e-12);
    EXPECT_NEAR(found.retained, 1.0, 1e-12);
  }
  EXPECT_NEAR(compare(A, eigen_of(23), kReferenceDim).rer, 0.0, 1e-12);
}

TEST(Compare, OverlapIsSymmetricAndForeignDirectionsNeverKeepMore) {
  const SymmetricEigen A = eigen_of(11), B = eigen_of(23);
  for (std::size_t r = 1; r <= kReferenceDim; ++r) {
    EXPECT_NEAR(compare(A, B, r).overlap, compare(B, A, r).overlap, 1e-12);
    EXPECT_LE(compare(A, B, r).retained, 1.0 + 1e-12);
    EXPECT_GE(compare(A, B, r).rer, compare(B, B, r).rer - 1e-12);
  }
}

TEST(Compare, OfAxesByHand) {
  // A leads with axes 0 and 1; B with 1 and 2, which hold 4 + 2 of its 7.
  const Comparison found = compare(axes({0, 1, 2}, {9, 5, 1}), axes({1, 2, 0}, {4, 2, 1}), 2);
  EXPECT_DOUBLE_EQ(found.overlap, 0.5);
  EXPECT_DOUBLE_EQ(found.retained, 5.0 / 6.0);
  EXPECT_DOUBLE_EQ(found.rer, 2.0 / 7.0);
  const Comparison empty = compare(axes({0, 1, 2}, {9, 5, 1}), axes({0, 1, 2}, {0, 0, 0}), 1);
  EXPECT_EQ(empty.retained, 1.0);
  EXPECT_EQ(empty.rer, 0.0);
}

TEST(DiscardedEnergy, AgreesWithNumpyOnRows) {
  const MatrixD weight = moment_of(reference_rows(23));
  const double found = discarded_energy(weight.view(), eigen_of(11), kReferenceRank);
  EXPECT_NEAR(found / kReferenceDiscarded, 1.0, 1e-9);
}

TEST(DiscardedEnergy, IsTheTailOfTheSpectrumUnderTheIdentityAndFallsWithTheRank) {
  const SymmetricEigen A = eigen_of(11);
  MatrixD identity(kReferenceDim, kReferenceDim);
  for (std::size_t i = 0; i < kReferenceDim; ++i) identity(i, i) = 1.0;
  const MatrixD weight = moment_of(reference_rows(23));
  for (std::size_t r = 0; r < kReferenceDim; ++r) {
    double tail = 0.0;
    for (std::size_t i = r; i < kReferenceDim; ++i) tail += A.values[i];
    EXPECT_NEAR(discarded_energy(identity.view(), A, r), tail, 1e-14);
    EXPECT_GE(discarded_energy(weight.view(), A, r), discarded_energy(weight.view(), A, r + 1));
  }
  EXPECT_EQ(discarded_energy(weight.view(), A, kReferenceDim), 0.0);
}

}  // namespace
}  // namespace kvspan::testing
