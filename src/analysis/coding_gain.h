// SPDX-License-Identifier: Apache-2.0
// Bits an element that a transform code saves over coding every element with the same step: half
// the log2 of the arithmetic over the geometric mean of the eigenvalues of the covariance. What is
// coded together shares one transform: joining blocks can only raise the gain (Fischer's
// inequality), by the information that they have about each other.
// Source: Jayant, Noll 1984 (transform coding gain at high resolution).
#pragma once

#include <cstddef>
#include <span>

#include "linalg/matrix.h"

namespace kvspan {

// Added to the diagonal, as a share of its mean, before logarithms are taken: directions without
// variance would make every gain infinite, and moments in f32 do not resolve less.
inline constexpr double kGainRidge = 1e-6;

// C: [n, n], a covariance, cut into diagonal blocks of these sizes (their sum is n), each with a
// transform of its own. 0 where C has no variance. Cost: n^3 / 3 flops for one block.
double coding_gain(MatrixViewD C, std::span<const std::size_t> blocks);
// One transform for all.
double coding_gain(MatrixViewD C);

}  // namespace kvspan
