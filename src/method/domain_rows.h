// SPDX-License-Identifier: Apache-2.0
// Rows of some heads as the code of a domain sees them, for trackers and decompositions.
#pragma once

#include "method/calibrated/learned_code.h"
#include "method/group.h"

namespace kvspan {

// [n, style.heads * style.dim]: rows first .. first + n - 1 of the block, heads from `first_head`
// on, in style.domain; no mean is subtracted.
Matrix domain_rows(const RowBlock& block, std::size_t first, std::size_t n, std::int32_t first_head,
                   const CodeStyle& style);

}  // namespace kvspan
