// SPDX-License-Identifier: Apache-2.0
// What a recipe's ranks, domains and bases come to for each group of heads, with the calibration
// where the recipe asks for it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "method/prepare_parts.h"

namespace kvspan::detail {

// Of each layer and group; nullopt: the side is not coded.
struct RankTable {
  std::vector<std::vector<std::optional<RankRule>>> keys, values;
};
// Fails on a rank beyond the dimension, naming key, value and what is allowed.
Result<RankTable> rank_table(const PrepareInput& in);

// The plan of one side, with its start from the calibration where the method begins with one.
struct SubspaceMethod;  // method/methods/prepare_subspace.h
Result<std::optional<SidePlan>> calibrated_side(const PrepareInput& in,
                                                const SubspaceMethod& method, std::size_t layer,
                                                const HeadRange& heads, bool keys,
                                                const std::optional<RankRule>& rank);

// The relative residual that `percentile` of the calibration's sample rows stay below, under the
// calibrated basis of this rank.
double calibrated_tau(const LayerCalibration& calibration, const SidePlan& side,
                      std::int32_t first_head, bool keys, double percentile);

}  // namespace kvspan::detail
