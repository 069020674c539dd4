// SPDX-License-Identifier: Apache-2.0
#include "linalg/right_singular.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/linalg/eigen_oracle.h"
#include "tests/linalg/test_matrices.h"

namespace kvspan {
namespace {

constexpr std::pair<std::size_t, std::size_t> kShapes[] = {{1, 1},   {9, 4},   {4, 9},
                                                           {16, 16}, {90, 33}, {20, 64}};

TEST(RightSingular, AgreesWithAnSvdOnEveryDifficultMatrix) {
  for (const auto& [m, n] : kShapes) {
    for (const auto& [name, A] : difficult_matrices(m, n)) {
      const std::vector<double> squared = squared_singular_values(dense(A.view()));
      const std::size_t k = std::min(m, n);
      const RightSingular right = right_singular(A.view(), k);
      ASSERT_EQ(right.squared.size(), k);
      const double bound = 100.0 * double(k) * 0x1p-52 * squared[0];  // twice LAPACK's threshold
      for (std::size_t i = 0; i < k; ++i) {
        EXPECT_NEAR(right.squared[i], squared[i], bound) << name;
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

}  // namespace
}  // namespace kvspan
