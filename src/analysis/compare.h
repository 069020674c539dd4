// SPDX-License-Identifier: Apache-2.0
// How the leading directions of one text serve another: A and B are eigensystems of second moments
// of the same vectors on two texts, P the projection onto the first r directions of A.
// Source of overlap and RER: OjaKV, section 4 (after Knyazev, Zhu 2012).
#pragma once

#include <cstddef>

#include "linalg/symmetric_eigen.h"

namespace kvspan {

struct Comparison {
  double overlap = 0.0;   // |U_A U_B'|_F^2 / r: 1 for the same subspace; symmetric in A and B
  double retained = 0.0;  // energy of B within P, over the energy of B's own best r directions
  double rer = 0.0;       // residual-energy ratio: energy of B outside P, over all energy of B
};

// 1 <= r <= dimension, which is that of both. Without energy in B: retained 1, rer 0. Cost: r d^2.
Comparison compare(const SymmetricEigen& A, const SymmetricEigen& B, std::size_t r);

}  // namespace kvspan
