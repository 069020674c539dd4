// SPDX-License-Identifier: Apache-2.0
// The levels that quantize a normal number of variance 1 with the least mean squared error: each is
// the mean of the numbers nearest to it (Lloyd 1957, Max 1960).
#pragma once

#include <span>

namespace kvspan {

// 2^bits of them, increasing and symmetric about 0, for bits 2 to 4. Found once, by Lloyd's
// iteration, to the precision of f32.
std::span<const float> normal_levels(int bits);

}  // namespace kvspan
