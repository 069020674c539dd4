// SPDX-License-Identifier: Apache-2.0
// How one side of a group is coded: keys or values, its style, its rank. What methods share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "method/calibrated/learned_code.h"

namespace kvspan {

struct SidePlan {
  CodeStyle style;
  RankRule rank;
  // From calibration, where the method starts from it; shared by all sequences.
  std::shared_ptr<const Code> start;
};

// A side that is not planned stays full rank.
struct CodingPlan {
  std::int32_t first_head = 0;
  std::int32_t heads = 1;
  std::optional<SidePlan> keys;
  std::optional<SidePlan> values;
  std::int32_t recent = 0;    // rows that stay full rank at the end
  std::int32_t unit = 64;     // rows that are coded together
  bool weigh_values = false;  // by received attention
};

}  // namespace kvspan
