// SPDX-License-Identifier: Apache-2.0
// Singular values and right singular vectors of a few rows, through the smaller of the two Grams.
// Promise: |S'S - V' diag(squared) V| is a small multiple of 2^-53 |S|^2. Squared singular values
// below that are noise: what lies under about 1e-7 of the largest singular value is not resolved,
// which is where the rounding of f32 rows ends too.
// Cost: the Gram, m^2 max(n, d) flops for m = min(n, d), and one eigenproblem of that size.
#pragma once

#include <cstddef>
#include <vector>

#include "linalg/matrix.h"

namespace kvspan {

struct RightSingular {
  std::vector<double> squared;  // [min(n, d)], squared singular values, descending, never negative
  MatrixD scaled;               // [count, d], row i is sigma_i v_i
};

// S: [n, d], finite. count <= min(n, d).
RightSingular right_singular(MatrixView S, std::size_t count);

}  // namespace kvspan
