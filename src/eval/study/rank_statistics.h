// SPDX-License-Identifier: Apache-2.0
// Whether one number goes with another, and how a number grows with a length.
#pragma once

#include <span>

namespace kvspan {

// Spearman's rank correlation; equal values share the mean of their ranks. NaN where one of the two
// does not vary. O(n log n).
double spearman(std::span<const double> a, std::span<const double> b);

// Slope of the least-squares line of y over x; NaN where x does not vary.
double least_squares_slope(std::span<const double> x, std::span<const double> y);

}  // namespace kvspan
