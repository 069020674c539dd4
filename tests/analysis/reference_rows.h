// SPDX-License-Identifier: Apache-2.0
// The rows that fixtures/make_reference.py took its figures from, made the same way.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "linalg/matrix.h"

namespace kvspan::testing {

inline constexpr std::size_t kReferenceRows = 96, kReferenceDim = 12, kReferenceRank = 3;

inline std::vector<double> reference_numbers(std::uint32_t seed, std::size_t count) {
  std::vector<double> out(count);
  for (double& value : out) {
    seed = 1664525u * seed + 1013904223u;
    value = (seed >> 8) / 16777216.0 - 0.5;
  }
  return out;
}

inline MatrixD reference_rows(std::uint32_t seed) {
  const std::size_t d = kReferenceDim;
  const auto mixing = reference_numbers(7, d * d), noise = reference_numbers(seed, d * d);
  const auto values = reference_numbers(seed + 1, kReferenceRows * d);
  MatrixD rows(kReferenceRows, d);
  for (std::size_t i = 0; i < kReferenceRows; ++i) {
    for (std::size_t k = 0; k < d; ++k) {
      const double x = values[i * d + k] * std::pow(0.6, static_cast<double>(k));
      for (std::size_t j = 0; j < d; ++j)
        rows(i, j) += x * (mixing[k * d + j] + 0.1 * noise[k * d + j]);
    }
  }
  return rows;
}

// E[x x'], or the covariance.
inline MatrixD moment_of(const MatrixD& rows, bool centred = false) {
  const std::size_t d = rows.cols();
  const auto n = static_cast<double>(rows.rows());
  std::vector<double> mean(d);
  MatrixD out(d, d);
  for (std::size_t i = 0; i < rows.rows(); ++i) {
    for (std::size_t j = 0; j < d; ++j) {
      mean[j] += rows(i, j) / n;
      for (std::size_t k = 0; k < d; ++k) out(j, k) += rows(i, j) * rows(i, k) / n;
    }
  }
  for (std::size_t j = 0; centred && j < d; ++j) {
    for (std::size_t k = 0; k < d; ++k) out(j, k) -= mean[j] * mean[k];
  }
  return out;
}

}  // namespace kvspan::testing
