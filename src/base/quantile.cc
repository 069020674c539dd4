// SPDX-License-Identifier: Apache-2.0
#include "base/quantile.h"

#include <algorithm>
#include <cmath>

#include "base/expect.h"

namespace kvspan {

double quantile(std::vector<double> values, double q) {
  KVSPAN_EXPECT(!values.empty(), "values to take a quantile of");
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return std::lerp(values[low], values[high], at - static_cast<double>(low));
}

}  // namespace kvspan
