// SPDX-License-Identifier: Apache-2.0
// Matrices that the linear algebra has to survive, each with a name for failure messages.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "linalg/matrix.h"

namespace kvspan {

struct NamedMatrix {
  std::string name;
  Matrix A;
};

inline Matrix gaussian(std::size_t rows, std::size_t cols, std::uint64_t seed, double scale = 1.0) {
  Random random(seed);
  Matrix A(rows, cols);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) A(i, j) = static_cast<float>(scale * random.normal());
  }
  return A;
}

// Rank at most `rank`, exactly in f32: products of small integers.
inline Matrix low_rank(std::size_t rows, std::size_t cols, std::size_t rank, std::uint64_t seed) {
  Random random(seed);
  Matrix L(rows, rank), R(rank, cols), A(rows, cols);
  const auto digit = [&] { return static_cast<float>(static_cast<int>(random.below(9)) - 4); };
  for (std::size_t i = 0; i < rows * rank; ++i) L.data()[i] = digit();
  for (std::size_t i = 0; i < rank * cols; ++i) R.data()[i] = digit();
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) {
      for (std::size_t t = 0; t < rank; ++t) A(i, j) += L(i, t) * R(t, j);
    }
  }
  return A;
}

// Columns fall by 80 dB from first to last.
inline Matrix decaying(std::size_t rows, std::size_t cols, std::uint64_t seed) {
  Matrix A = gaussian(rows, cols, seed);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) {
      A(i, j) *= static_cast<float>(
          std::pow(10.0, -4.0 * static_cast<double>(j) / static_cast<double>(cols)));
    }
  }
  return A;
}

inline std::vector<NamedMatrix> difficult_matrices(std::size_t rows, std::size_t cols) {
  std::vector<NamedMatrix> all;
  all.push_back({"gaussian", gaussian(rows, cols, 1)});
  all.push_back({"decaying", decaying(rows, cols, 2)});
  all.push_back({"tiny 1e-30", gaussian(rows, cols, 3, 1e-30)});
  all.push_back({"huge 1e30", gaussian(rows, cols, 4, 1e30)});
  all.push_back({"rank 1", low_rank(rows, cols, 1, 5)});
  all.push_back({"rank 3", low_rank(rows, cols, 3, 6)});
  all.push_back({"zeros", Matrix(rows, cols)});
  NamedMatrix duplicates{"equal rows", Matrix(rows, cols)};
  const Matrix pattern = gaussian(1, cols, 7);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) duplicates.A(i, j) = pattern(0, j);
  }
  all.push_back(std::move(duplicates));
  NamedMatrix ones{"all entries equal", Matrix(rows, cols)};
  for (std::size_t i = 0; i < rows * cols; ++i) ones.A.data()[i] = 1.7320508f;
  all.push_back(std::move(ones));
  NamedMatrix mixed{"rows of scales 1e-30 to 1e30", gaussian(rows, cols, 8)};
  for (std::size_t i = 0; i < rows; ++i) {
    const double exponent =
        rows < 2 ? 0.0 : -30.0 + 60.0 * static_cast<double>(i) / static_cast<double>(rows - 1);
    for (std::size_t j = 0; j < cols; ++j)
      mixed.A(i, j) *= static_cast<float>(std::pow(10.0, exponent));
  }
  all.push_back(std::move(mixed));
  NamedMatrix identity{"identity", Matrix(rows, cols)};
  for (std::size_t i = 0; i < std::min(rows, cols); ++i) identity.A(i, i) = 1.0f;
  all.push_back(std::move(identity));
  NamedMatrix one{"a single entry", Matrix(rows, cols)};
  if (rows > 0 && cols > 0) one.A(rows / 2, cols / 3) = -2.0f;
  all.push_back(std::move(one));
  return all;
}

// A'A in f64.
inline MatrixD gram(const Matrix& A) {
  MatrixD G(A.cols(), A.cols());
  for (std::size_t t = 0; t < A.rows(); ++t) {
    for (std::size_t i = 0; i < A.cols(); ++i) {
      for (std::size_t j = 0; j < A.cols(); ++j) {
        G(i, j) += static_cast<double>(A(t, i)) * static_cast<double>(A(t, j));
      }
    }
  }
  return G;
}

}  // namespace kvspan
