// SPDX-License-Identifier: Apache-2.0
// Colours and strokes of all charts: one set of CSS variables for light screens and paper, one for
// dark screens.
#pragma once

#include <cstddef>
#include <string>

namespace kvspan {

inline constexpr std::size_t kSeriesColours = 12;

std::string chart_style();

}  // namespace kvspan
