// SPDX-License-Identifier: Apache-2.0
// The moments of rotated vectors, from those before rotation: with offsets o that do not depend on
// the vectors, E[Rot(o) x x' Rot(o)'] averages the rotations out. A pair of coordinates as a
// complex number z turns by e^{i o angle}, so that E[z_a conj(z_b)] is multiplied by the mean of
// e^{i o (angle_a - angle_b)} and E[z_a z_b] by that of e^{i o (angle_a + angle_b)}. Exact, in D^2.
#pragma once

#include <cstdint>
#include <vector>

#include "kvspan/cache.h"
#include "linalg/matrix.h"

namespace kvspan {

// Offsets of the tokens of an anchored block of n positions: -n/2 .. n - 1 - n/2.
std::vector<std::int32_t> anchored_offsets(std::int32_t block);

// M [D, D] is the second moment of [x_0 ; .. ; x_{heads-1} ; y]: `heads` vectors of `dim` numbers,
// which are rotated, and any others, which are not. Rotates it in place.
void average_rotations(const Rope& rope, std::int32_t heads, std::int32_t dim,
                       const std::vector<std::int32_t>& offsets, MatrixD& M);

}  // namespace kvspan
