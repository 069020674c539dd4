// SPDX-License-Identifier: Apache-2.0
// Against the definition of an eigendecomposition, and against Eigen's solver.
#include "linalg/symmetric_eigen.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/cpu_level.h"
#include "tests/linalg/eigen_oracle.h"
#include "tests/linalg/test_matrices.h"

namespace kvspan {
namespace {

double frobenius(const MatrixD& G) {
  double sum = 0.0, largest = 0.0;
  for (std::size_t i = 0; i < G.rows() * G.cols(); ++i) {
    largest = std::max(largest, std::abs(G.data()[i]));
  }
  if (largest == 0.0) return 0.0;
  for (std::size_t i = 0; i < G.rows() * G.cols(); ++i) {
    sum += (G.data()[i] / largest) * (G.data()[i] / largest);
  }
  return largest * std::sqrt(sum);
}

// LAPACK accepts its symmetric solvers when |A - Z'DZ| / (n |A| 2^-52) and |ZZ' - I| / (n 2^-52)
// stay below 50 (TESTING/sep.in); so do we.
constexpr double kLapackThreshold = 50.0 * 0x1p-52;

void expect_decomposition(const MatrixD& G, const SymmetricEigen& eigen, const std::string& name) {
  const std::size_t n = G.rows();
  const double norm = frobenius(G);
  const double bound = kLapackThreshold * static_cast<double>(n);
  for (std::size_t i = 0; i + 1 < n; ++i) {
    EXPECT_GE(eigen.values[i], eigen.values[i + 1]) << name;
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double product = 0.0, rebuilt = 0.0;
      for (std::size_t t = 0; t < n; ++t) {
        product += eigen.vectors(i, t) * eigen.vectors(j, t);
        rebuilt += eigen.vectors(t, i) * eigen.values[t] * eigen.vectors(t, j);
      }
      ASSERT_NEAR(product, i == j ? 1.0 : 0.0, bound) << name << " " << i << "," << j;
      ASSERT_NEAR(rebuilt, G(i, j), bound * norm) << name << " " << i << "," << j;
    }
  }
}

TEST(SymmetricEigen, DecomposesEveryDifficultGram) {
  for (const std::size_t n : {1u, 2u, 3u, 7u, 8u, 9u, 10u, 24u, 33u, 64u}) {
    for (const auto& [name, A] : difficult_matrices(n + 3, n)) {
      const MatrixD G = gram(A);
      const auto eigen = symmetric_eigen(G.view());
      ASSERT_TRUE(eigen) << eigen.error().message;
      expect_decomposition(G, *eigen, name + " n=" + std::to_string(n));
    }
  }
}

TEST(SymmetricEigen, DecomposesAtEveryLevelOfTheProcessor) {
  const MatrixD G = gram(decaying(70, 50, 9));
  for (const CpuLevel level : available_cpu_levels()) {
    ASSERT_TRUE(force_cpu_level(level));
    expect_decomposition(G, *symmetric_eigen(G.view()), std::string(name_of(level)));
  }
  ASSERT_TRUE(force_cpu_level(available_cpu_levels().back()));
}

TEST(SymmetricEigen, DecomposesIndefiniteSplitAndScaledMatrices) {
  Random random(11);
  for (const double scale : {1e-200, 1e-90, 1e-59, 1.0, 1e59, 1e90, 1e150}) {
    MatrixD G(20, 20);
    for (std::size_t i = 0; i < 20; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        const bool linked = (i < 9) == (j < 9);  // two blocks without a link
        G(i, j) = G(j, i) = linked ? scale * random.normal() : 0.0;
      }
    }
    expect_decomposition(G, *symmetric_eigen(G.view()), "indefinite");
  }
}

TEST(SymmetricEigen, AgreesWithEigensSolver) {
  for (const std::size_t n : {5u, 64u, 130u}) {
    for (const auto& [name, A] : difficult_matrices(n, n)) {
      const MatrixD G = gram(A);
      const std::vector<double> expected = symmetric_eigenvalues(G);
      const auto eigen = symmetric_eigen(G.view());
      // Both are within the threshold of the true values (Weyl).
      const double bound = 2.0 * kLapackThreshold * static_cast<double>(n) * frobenius(G);
      for (std::size_t i = 0; i < n; ++i) {
        EXPECT_NEAR(eigen->values[i], expected[n - 1 - i], bound) << name;
      }
    }
  }
}

TEST(SymmetricEigen, TakesTheLargestSize) {
  const std::size_t n = 1024;
  const MatrixD G = gram(low_rank(40, n, 20, 12));
  const auto eigen = symmetric_eigen(G.view());
  double trace = 0.0, sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    trace += G(i, i);
    sum += eigen->values[i];
  }
  EXPECT_NEAR(sum, trace, kLapackThreshold * double(n) * frobenius(G));
  EXPECT_GT(eigen->values[19], 1.0);
  EXPECT_LT(std::abs(eigen->values[20]), kLapackThreshold * double(n) * frobenius(G));
}

TEST(SymmetricEigen, ReadsTheLowerTriangleOnly) {
  MatrixD G = gram(gaussian(12, 10, 13));
  const auto expected = symmetric_eigen(G.view());
  for (std::size_t i = 0; i < 10; ++i) {
    for (std::size_t j = i + 1; j < 10; ++j) G(i, j) = 99.0;
  }
  EXPECT_EQ(symmetric_eigen(G.view())->values, expected->values);
}

TEST(SymmetricEigen, NamesTheEntryThatIsNotFinite) {
  MatrixD G = gram(gaussian(12, 10, 14));
  G(7, 3) = std::numeric_limits<double>::quiet_NaN();
  const auto eigen = symmetric_eigen(G.view());
  ASSERT_FALSE(eigen);
  EXPECT_NE(eigen.error().message.find("row 7, column 3"), std::string::npos)
      << eigen.error().message;
}

}  // namespace
}  // namespace kvspan
