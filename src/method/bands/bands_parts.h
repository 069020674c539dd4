// SPDX-License-Identifier: Apache-2.0
// What of a bands code follows from the model and the recipe alone.
#pragma once

#include <cstdint>

#include "method/bands/bands_design.h"

namespace kvspan {

// Heads, dimensions and domain of the codes that design_bands makes for `heads` heads together, of
// keys, values or both.
BandsParts bands_parts(const LayerShape& layer, std::int32_t heads, bool keys, bool values,
                       const BandsOptions& options);

}  // namespace kvspan
