// SPDX-License-Identifier: Apache-2.0
// What methods that keep leading directions share: ranks, domains and bases of every group of
// heads; and in what they differ.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "method/calibrated/calibrated_side.h"
#include "method/prepare_parts.h"

namespace kvspan::detail {

struct SubspaceMethod {
  std::int32_t unit = 64;            // rows that are coded together
  bool starts_calibrated = false;    // with bases of the calibration
  bool own_bases = false;            // segments bring theirs, stored as `bases` says
  std::string_view key_basis = "k";  // static's `basis`
  std::int32_t scale_rows = 1;       // tokens of an integer scale; 0: all of a unit
  bool reconstructs = false;         // rows are rebuilt before attending
  bool weighs_values = false;        // by the attention they receive
  // What its ranks have to meet beside the dimensions; null: nothing.
  Status (*check)(const RecipePart& m, const LayerShape& shape, const RankTable& ranks,
                  std::size_t layer) = nullptr;
  // Gives a group its policy, and says what that wants to be told.
  std::function<Status(std::size_t layer, const std::shared_ptr<const CodingPlan>& plan,
                       PreparedGroup& group)>
      set_policy;
};

// The calibration is whole (all layers in memory) where set_policy is called.
PreparedLayers prepare_subspace(const PrepareInput& in, const SubspaceMethod& method);

// `in` with all layers of its calibration in memory, which `whole` then holds, but for moments
// between layers.
Result<PrepareInput> with_whole_calibration(const PrepareInput& in, Calibration& whole);

}  // namespace kvspan::detail
