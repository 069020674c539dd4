// SPDX-License-Identifier: Apache-2.0
// Thin QR by Householder reflectors, in f64; results rounded to f32.
// Promise: Q is orthonormal to rounding for every finite input, also where A is rank-deficient or
// zero (the missing directions are filled in), and A = QR up to rounding of each column's own size.
// Cost: 4 m n k flops for k = min(m, n).
#pragma once

#include <span>

#include "kvspan/result.h"
#include "kvspan/team.h"
#include "linalg/matrix.h"

namespace kvspan {

struct ThinQr {
  Matrix Q;  // [m, k], orthonormal columns, k = min(m, n)
  Matrix R;  // [k, n], upper triangular, no negative entry on its diagonal
};

// A: [m, n]. Fails on an entry that is not finite, naming its row and column.
Result<ThinQr> thin_qr(MatrixView A);

// Orthonormal rows [r, d] whose first k rows span at least the first k rows of A [r, d], r <= d. A
// row that is orthonormal to those before it keeps its direction and sign. Fails as thin_qr does.
Result<Matrix> orthonormal_rows(MatrixView A);
Result<Matrix> orthonormal_rows(MatrixViewD A);

namespace detail {

// A = LQ for A [r, d], r <= d, finite: Q [r, d] with orthonormal rows, L [r, r] lower triangular
// with no negative entry on its diagonal.
struct ThinLq {
  MatrixD L;
  MatrixD Q;
};
ThinLq thin_lq(MatrixViewD A);

}  // namespace detail
}  // namespace kvspan
