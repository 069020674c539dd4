// SPDX-License-Identifier: Apache-2.0
// What rounding a transform's matrix to f16 does to its directions.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "linalg/symmetric_eigen.h"

namespace kvspan::testing {

// How far a column b of B, [D, D], turns in the metric when its numbers are rounded to f16, on
// average: |M^1/2 e|^2 is the sum of e_k^2 M_kk where the errors e_k are independent, up to 2^-11
// of b_k and even. M = (B B')^-1, as B = M^-1/2 U.
inline std::vector<double> turns_by_rounding(const std::vector<double>& b, std::size_t d) {
  MatrixD inverse(d, d);
  for (std::size_t i = 0; i < d * d; ++i) {
    for (std::size_t p = 0; p < d; ++p)
      inverse(i / d, i % d) += b[i / d * d + p] * b[i % d * d + p];
  }
  const SymmetricEigen eigen = symmetric_eigen(inverse.view()).value();
  std::vector<double> turns(d);
  for (std::size_t k = 0; k < d; ++k) {
    double m = 0.0;
    for (std::size_t i = 0; i < d; ++i) {
      m += eigen.vectors(i, k) * eigen.vectors(i, k) / eigen.values[i];
    }
    for (std::size_t p = 0; p < d; ++p) turns[p] += b[k * d + p] * b[k * d + p] * m;
  }
  for (double& turn : turns) turn = 0x1p-11 * std::sqrt(turn / 3.0);
  return turns;
}

}  // namespace kvspan::testing
