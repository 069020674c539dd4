// SPDX-License-Identifier: Apache-2.0
// What a basis leaves of a vector: |x|^2 = |Bx|^2 + |(I - P)x|^2.
// The difference of the first two costs nothing once c = Bx is known, but cancels: with B and c in
// f32 it is off by up to 4e-7 |x|^2. It is clamped at 0, and below 1e-6 |x|^2 the residual is
// computed directly instead.
#pragma once

#include <span>

#include "linalg/matrix.h"

namespace kvspan {

inline constexpr double kCancellationGuard = 1e-6;

// x: [d], c: [r] = Bx, B: [r, d] with orthonormal rows. Sums in f64; never negative. Cost: r + d
// multiplications, and r d more behind the guard.
double residual_squared(std::span<const float> x, std::span<const float> c, MatrixView B) noexcept;

// c = Bx (summed in f64, rounded), and the residual.
double project(std::span<const float> x, MatrixView B, std::span<float> c) noexcept;

}  // namespace kvspan
