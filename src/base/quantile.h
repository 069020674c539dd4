// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace kvspan {

// Linear interpolation between order statistics; q in 0..1. There is at least one value.
double quantile(std::vector<double> values, double q);

}  // namespace kvspan
