// SPDX-License-Identifier: Apache-2.0
// The codes of a group's bands from rows of the very text that they will code (calib=online): means
// and covariance of the rows take the place of a calibration, by the same design. Nothing is known
// of queries and of the output projection, so errors count alike within a side.
#pragma once

#include <cstdint>
#include <memory>

#include "method/bands/bands_design.h"
#include "method/group.h"

namespace kvspan {

// Tokens before this position say nothing of the others: their norms are huge.
inline constexpr std::int32_t kFirstLearnt = 32;

// options.own. Deterministic; by the calling thread alone. Cost: n D^2 for n rows of D numbers, and
// two eigenproblems, of D and of D / 2. Fails where no row is at kFirstLearnt or later.
Result<GroupBands> learn_bands(const LayerShape& layer, const RowBlock& rows,
                               const BandsOptions& options, const std::shared_ptr<Ledger>& ledger);

}  // namespace kvspan
