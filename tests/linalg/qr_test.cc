// SPDX-License-Identifier: Apache-2.0
#include "linalg/qr.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "linalg/subspaces.h"
#include "tests/linalg/eigen_oracle.h"
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

// Columns of Q are exact to about n 2^-53, then rounded: |q_i . q_j - delta| <= 2 kUnit plus the
// square of it; 3 covers both.
TEST(ThinQr, IsOrthonormalAndRebuildsEveryDifficultMatrix) {
  const std::pair<std::size_t, std::size_t> shapes[] = {{1, 1}, {9, 4}, {4, 9}, {16, 16}, {70, 33}};
  for (const auto& [m, n] : shapes) {
    for (const auto& [name, A] : difficult_matrices(m, n)) {
      const auto qr = thin_qr(A.view());
      ASSERT_TRUE(qr) << qr.error().message;
      const std::size_t k = std::min(m, n);
      EXPECT_LE(orthonormality_defect(transpose(qr->Q).view()), 3 * kUnit) << name;
      for (std::size_t j = 0; j < n; ++j) {
        double column = 0.0;
        for (std::size_t i = 0; i < m; ++i) column += double(A(i, j)) * A(i, j);
        for (std::size_t i = 0; i < m; ++i) {
          double sum = 0.0;
          for (std::size_t t = 0; t < k; ++t) sum += double(qr->Q(i, t)) * qr->R(t, j);
          // k products, each factor rounded to f32: 2 kUnit sum |q||r| <= 2 kUnit |row of Q| |a_j|.
          ASSERT_NEAR(sum, A(i, j), 3 * kUnit * std::sqrt(column) + 1e-44) << name;
        }
      }
      for (std::size_t i = 0; i < k; ++i) {
        EXPECT_GE(qr->R(i, i), 0.0f) << name;
        for (std::size_t j = 0; j < i; ++j) EXPECT_EQ(qr->R(i, j), 0.0f);
      }
    }
  }
}

TEST(ThinQr, AgreesWithEigens) {
  const Matrix A = gaussian(40, 12, 3);
  const auto qr = thin_qr(A.view());
  const MatrixD R = householder_qr(dense(A.view())).R;
  // Both are exact to f64 but for the rounding of R to f32.
  for (std::size_t i = 0; i < 12; ++i) {
    const double sign = R(i, i) < 0 ? -1 : 1;
    for (std::size_t j = i; j < 12; ++j) {
      EXPECT_NEAR(qr->R(i, j), sign * R(i, j), kUnit * std::abs(R(i, j)) + 1e-12);
    }
  }
}

TEST(OrthonormalRows, KeepsTheLeadingSpansAndTheSigns) {
  const Matrix A = gaussian(6, 20, 4);
  const auto B = orthonormal_rows(A.view());
  ASSERT_TRUE(B);
  for (std::size_t k = 1; k <= 6; ++k) {
    // Row k-1 of A lies in the first k rows of B, on the positive side of the last.
    double norm = 0.0, inside = 0.0, last = 0.0;
    for (std::size_t j = 0; j < 20; ++j) norm += double(A(k - 1, j)) * A(k - 1, j);
    for (std::size_t i = 0; i < k; ++i) {
      double c = 0.0;
      for (std::size_t j = 0; j < 20; ++j) c += double(A(k - 1, j)) * (*B)(i, j);
      inside += c * c;
      last = c;
    }
    EXPECT_NEAR(inside, norm, 8 * kUnit * norm);
    EXPECT_GT(last, 0.0);
  }
}

TEST(OrthonormalRows, FillsInWhatIsMissing) {
  for (const auto& [name, A] : difficult_matrices(11, 24)) {
    const auto B = orthonormal_rows(A.view());
    ASSERT_TRUE(B);
    EXPECT_LE(orthonormality_defect(B->view()), 3 * kUnit) << name;
  }
}

TEST(ThinQr, NamesTheEntryThatIsNotFinite) {
  Matrix A = gaussian(5, 4, 5);
  A(2, 3) = -std::numeric_limits<float>::infinity();
  const auto qr = thin_qr(A.view());
  ASSERT_FALSE(qr);
  EXPECT_NE(qr.error().message.find("row 2, column 3"), std::string::npos);
  EXPECT_FALSE(orthonormal_rows(transpose(A).view()));
}

}  // namespace
}  // namespace kvspan
