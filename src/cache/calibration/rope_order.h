// SPDX-License-Identifier: Apache-2.0
// Calibrations and the RoPE of the model that they are used with. Engines order the coordinates of a
// head's keys and queries in two ways (Rope::Pairs): such arrays are converted. Arrays of rotated
// keys and queries also depend on the angles, which cannot be converted.
#pragma once

#include <optional>

#include "kvspan/calibration.h"

namespace kvspan {

// Fails, naming both, where the calibration says that it was made with other angles or magnitudes
// than the shape's; relative differences up to 1e-4 are rounding.
Status check_ropes(const CacheShape& shape, const Calibration& calibration);

// The calibration with arrays in the shape's order, each layer converted when it is read; none where
// it has that order already. A calibration that does not say its order shows it: a rotation leaves
// the sum of squares of its own pairs as it is, and only of those. Where neither order stands out it
// counts as the shape's. Refers to `calibration`. Fails for layers without RoPE among others that
// need conversion: nothing tells the order of their coordinates.
Result<std::optional<Calibration>> in_rope_order(const CacheShape& shape,
                                                 const Calibration& calibration);

}  // namespace kvspan
