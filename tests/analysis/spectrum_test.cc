// SPDX-License-Identifier: Apache-2.0
#include "analysis/spectrum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "linalg/symmetric_eigen.h"
#include "tests/analysis/fixtures/reference.h"
#include "tests/analysis/reference_rows.h"

namespace kvspan::testing {
namespace {

TEST(SpectrumFigures, AgreeWithNumpyOnRows) {
  const auto eigen = symmetric_eigen(moment_of(reference_rows(11)).view()).value();
  // Eigenvalues of a Gram are exact to some 2^-52 of the largest.
  const double tolerance = 1e-14 * kReferenceSpectrum[0] * kReferenceDim;
  for (std::size_t i = 0; i < kReferenceDim; ++i) {
    EXPECT_NEAR(eigen.values[i], kReferenceSpectrum[i], tolerance);
  }
  const SpectrumFigures figures = figures_of(eigen.values);
  for (std::size_t i = 0; i < kReferenceRanks.size(); ++i) {
    EXPECT_EQ(figures.ranks[i], static_cast<std::size_t>(kReferenceRanks[i]));
  }
  EXPECT_NEAR(figures.entropy, kReferenceEntropy, 1e-12);
  EXPECT_NEAR(figures.effective, std::exp(kReferenceEntropy), 1e-11);
}

TEST(SpectrumFigures, OfTheIdentity) {
  for (const std::size_t d : {1, 8, 16, 20, 64}) {
    const SpectrumFigures figures = figures_of(std::vector<double>(d, 3.0));
    EXPECT_DOUBLE_EQ(figures.energy, 3.0 * static_cast<double>(d));
    EXPECT_NEAR(figures.entropy, std::log(static_cast<double>(d)), 1e-12);
    EXPECT_NEAR(figures.effective, static_cast<double>(d), 1e-9);
    EXPECT_NEAR(figures.top16, std::min(1.0, 16.0 / static_cast<double>(d)), 1e-12);
    EXPECT_EQ(figures.ranks[2],
              static_cast<std::size_t>(std::ceil(0.99 * static_cast<double>(d) - 1e-9)));
  }
}

TEST(SpectrumFigures, OfOneDirectionAndOfNothing) {
  const SpectrumFigures one = figures_of(std::vector<double>{5.0, 0.0, -1e-18});
  EXPECT_EQ(one.ranks, (std::array<std::size_t, 3>{1, 1, 1}));
  EXPECT_DOUBLE_EQ(one.entropy, 0.0);
  EXPECT_DOUBLE_EQ(one.effective, 1.0);
  const SpectrumFigures none = figures_of(std::vector<double>{0.0, -1e-18});
  EXPECT_EQ(none.ranks, (std::array<std::size_t, 3>{0, 0, 0}));
  EXPECT_EQ(none.effective, 0.0);
}

}  // namespace
}  // namespace kvspan::testing
