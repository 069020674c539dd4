// SPDX-License-Identifier: Apache-2.0
// How two subspaces lie to each other, and how orthonormal a basis is. A basis is [r, d] with
// orthonormal rows. All in f64; finite input only (bases come out of this room, so this is checked
// as the caller's duty).
#pragma once

#include <vector>

#include "linalg/matrix.h"

namespace kvspan {

// The min(r1, r2) principal angles in radians, ascending. Cosines decide above 45 degrees and sines
// below, so small angles are as accurate as the bases (about 1e-7 in f32), not their square root.
// Source: Knyazev, Argentati 2002.
std::vector<double> principal_angles(MatrixView B1, MatrixView B2);

// |B1 B2'|_F^2 / min(r1, r2): 1 when the smaller subspace lies within the other, 0 when they are
// orthogonal.
double subspace_overlap(MatrixView B1, MatrixView B2);

// max |BB' - I|.
double orthonormality_defect(MatrixView B);

}  // namespace kvspan
