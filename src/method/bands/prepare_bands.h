// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "method/prepare_parts.h"

namespace kvspan::detail {

// Codes of all layers designed together, or learnt by each group alone.
PreparedLayers prepare_bands(const PrepareInput& in);

}  // namespace kvspan::detail
