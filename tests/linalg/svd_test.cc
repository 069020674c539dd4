// SPDX-License-Identifier: Apache-2.0
#include "linalg/svd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/thread_pool.h"
#include "linalg/right_singular.h"
#include "linalg/subspaces.h"
#include "tests/linalg/test_matrices.h"

namespace kvspan {
namespace {

constexpr double kUnit = 0x1p-24;  // half an ulp of f32 at 1

Matrix transpose(const Matrix& A) {
  Matrix T(A.cols(), A.rows());
  for (std::size_t i = 0; i < A.rows(); ++i) {
    for (std::size_t j = 0; j < A.cols(); ++j) T(j, i) = A(i, j);
  }
  return T;
}

constexpr std::pair<std::size_t, std::size_t> kShapes[] = {{1, 1},   {9, 4},   {4, 9},
                                                           {16, 16}, {90, 33}, {20, 64}};

TEST(ThinSvd, IsOrthonormalDescendingAndRebuildsEveryDifficultMatrix) {
  for (const auto& [m, n] : kShapes) {
    for (const auto& [name, A] : difficult_matrices(m, n)) {
      const auto svd = thin_svd(A.view());
      ASSERT_TRUE(svd) << svd.error().message;
      const std::size_t k = std::min(m, n);
      EXPECT_LE(orthonormality_defect(svd->Vt.view()), 3 * kUnit) << name;
      EXPECT_LE(orthonormality_defect(transpose(svd->U).view()), 3 * kUnit) << name;
      for (std::size_t i = 0; i < k; ++i) {
        EXPECT_GE(svd->sigma[i], i + 1 < k ? svd->sigma[i + 1] : 0.0) << name;
      }
      for (std::size_t i = 0; i < m; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          double sum = 0.0;
          for (std::size_t t = 0; t < k; ++t) {
            sum += svd->U(i, t) * svd->sigma[t] * svd->Vt(t, j);
          }
          // U and Vt are rounded to f32: 2 kUnit sigma_1 sum |u||v|, the sum at most 1.
          ASSERT_NEAR(sum, A(i, j), 3 * kUnit * svd->sigma[0]) << name;
        }
      }
    }
  }
}

TEST(ThinSvd, RightSingularVectorsThroughTheGramAgree) {
  for (const auto& [m, n] : kShapes) {
    for (const auto& [name, A] : difficult_matrices(m, n)) {
      const auto svd = thin_svd(A.view());
      const std::size_t k = std::min(m, n);
      const RightSingular right = right_singular(A.view(), k);
      ASSERT_EQ(right.squared.size(), k);
      const double largest = svd->sigma[0] * svd->sigma[0];
      const double bound = 100.0 * double(k) * 0x1p-52 * largest;  // twice LAPACK's threshold
      for (std::size_t i = 0; i < k; ++i) {
        EXPECT_NEAR(right.squared[i], svd->sigma[i] * svd->sigma[i], bound) << name;
      }
      // sum of sigma_i^2 v_i v_i' = A'A, whichever vectors span a repeated singular value.
      const MatrixD G = gram(A);
      for (std::size_t a = 0; a < n; ++a) {
        for (std::size_t b = 0; b <= a; ++b) {
          double sum = 0.0;
          for (std::size_t i = 0; i < k; ++i) sum += right.scaled(i, a) * right.scaled(i, b);
          ASSERT_NEAR(sum, G(a, b), bound) << name;
        }
      }
    }
  }
}

TEST(RandomizedSvd, IsExactWhereTheRankAllows) {
  const Matrix A = low_rank(200, 60, 7, 1);
  const auto exact = thin_svd(A.view());
  const auto found = randomized_svd(A.view(), 7);
  ASSERT_TRUE(found);
  ASSERT_EQ(found->sigma.size(), 7u);
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_NEAR(found->sigma[i], exact->sigma[i], 1e-12 * exact->sigma[0]);
  }
  const auto angles = principal_angles(found->Vt.view(), exact->Vt.top(7));
  EXPECT_LT(angles.back(), 1e-6);
}

TEST(RandomizedSvd, IsCloseOnAFallingSpectrumAndRepeatsWithItsSeed) {
  const Matrix A = decaying(300, 80, 2);
  const auto exact = thin_svd(A.view());
  const auto found = randomized_svd(A.view(), 10, {.seed = 5});
  // Halko et al., theorem 10.6 with two power iterations: the error of a singular value is a few
  // percent of sigma_11 at most; here sigma_11/sigma_10 is about 0.9.
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_NEAR(found->sigma[i], exact->sigma[i], 0.01 * exact->sigma[10]);
  }
  EXPECT_EQ(randomized_svd(A.view(), 10, {.seed = 5})->Vt, found->Vt);
  EXPECT_NE(randomized_svd(A.view(), 10, {.seed = 6})->Vt, found->Vt);
}

TEST(RandomizedSvd, SurvivesDifficultMatricesAndRanksBeyondTheShape) {
  for (const auto& [name, A] : difficult_matrices(12, 30)) {
    const auto found = randomized_svd(A.view(), 50);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->Vt.rows(), 12u);
    EXPECT_LE(orthonormality_defect(found->Vt.view()), 3 * kUnit) << name;
    const auto exact = thin_svd(A.view());
    for (std::size_t i = 0; i < 12; ++i) {
      EXPECT_NEAR(found->sigma[i], exact->sigma[i], 1e-12 * exact->sigma[0]) << name;
    }
  }
}

TEST(ThinSvd, NamesTheEntryThatIsNotFinite) {
  Matrix A = gaussian(6, 6, 5);
  A(4, 1) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(thin_svd(A.view()).error().message.find("row 4, column 1"), std::string::npos);
  EXPECT_FALSE(randomized_svd(A.view(), 2));
}

TEST(ThinSvd, TakesNothing) {
  EXPECT_TRUE(thin_svd(Matrix(0, 5).view())->sigma.empty());
  EXPECT_TRUE(randomized_svd(Matrix(5, 5).view(), 0)->sigma.empty());
}

TEST(ThinSvd, BatchesGiveTheSameBitsForAnyNumberOfThreads) {
  std::vector<Matrix> matrices;
  std::vector<MatrixView> views;
  for (std::size_t i = 0; i < 9; ++i) matrices.push_back(gaussian(20, 3 + i, i));
  for (const auto& A : matrices) views.push_back(A.view());
  ThreadPool pool(2);
  std::vector<Result<Svd>> out(matrices.size(), Svd{});
  pool.run([&](Team& team) { thin_svd_batch(views, out, team); });
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    EXPECT_EQ(out[i]->sigma, thin_svd(views[i])->sigma);
    EXPECT_EQ(out[i]->Vt, thin_svd(views[i])->Vt);
  }
}

}  // namespace
}  // namespace kvspan
