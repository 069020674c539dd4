// SPDX-License-Identifier: Apache-2.0
#include "analysis/coding_gain.h"

#include <array>
#include <cmath>
#include <numeric>

#include "base/expect.h"

namespace kvspan {
namespace {

// log2 of det(C + ridge I) of the block [first, first + n), by Cholesky. A pivot cannot fall below
// the ridge but by rounding.
double log2_determinant(MatrixViewD C, std::size_t first, std::size_t n, double ridge) {
  MatrixD L(n, n);
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double value = C.row(first + i)[first + j];
      for (std::size_t k = 0; k < j; ++k) value -= L(i, k) * L(j, k);
      if (j < i) {
        L(i, j) = value / L(j, j);
      } else {
        const double pivot = std::max(value + ridge, 0.5 * ridge);
        L(i, i) = std::sqrt(pivot);
        sum += std::log2(pivot);
      }
    }
  }
  return sum;
}

}  // namespace

double coding_gain(MatrixViewD C, std::span<const std::size_t> blocks) {
  const std::size_t n = C.shape[0];
  KVSPAN_EXPECT(std::accumulate(blocks.begin(), blocks.end(), std::size_t{0}) == n,
                "blocks that make up the matrix");
  double trace = 0.0;
  for (std::size_t i = 0; i < n; ++i) trace += C.row(i)[i];
  if (n == 0 || trace <= 0.0) return 0.0;
  const double mean = trace / static_cast<double>(n), ridge = kGainRidge * mean;
  double bits = 0.0;
  std::size_t first = 0;
  for (const std::size_t size : blocks) {
    bits += log2_determinant(C, first, size, ridge);
    first += size;
  }
  return 0.5 * (std::log2(mean + ridge) - bits / static_cast<double>(n));
}

double coding_gain(MatrixViewD C) {
  const std::array whole{C.shape[0]};
  return coding_gain(C, whole);
}

}  // namespace kvspan
