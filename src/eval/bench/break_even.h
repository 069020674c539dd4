// SPDX-License-Identifier: Apache-2.0
// The length from which one cache costs less than another: fewer bytes, or less time.
#pragma once

#include <optional>
#include <span>

namespace kvspan {

// Costs of the two at one length, in one unit.
struct CostPoint {
  double length = 0.0;
  double own = 0.0, other = 0.0;
};

struct BreakEven {
  double length = 0.0;
  bool extrapolated = false;  // beyond the last point
};

// `points` by increasing length, at least one. Where `own` is below `other` from some point on: the
// length between it and the point before, by straight lines; the first length if it always is.
// Where it is not below at the last point: where the lines through the second half of the points
// meet, or nothing if they do not meet within a thousand times the last length.
std::optional<BreakEven> break_even(std::span<const CostPoint> points);

}  // namespace kvspan
