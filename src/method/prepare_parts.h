// SPDX-License-Identifier: Apache-2.0
// What functions that make methods (MethodDeclaration::make) are given, and what they share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvspan/calibration.h"
#include "method/coding_plan.h"
#include "method/designs.h"
#include "method/prepared.h"

namespace kvspan::detail {

struct PrepareInput {
  const CacheShape& shape;
  const RecipePart& method;
  const Calibration*
      calibration;  // checked; null where the recipe needs none, or designs are saved
  std::shared_ptr<Ledger> shared;
  Designs& designs;  // where all comes from that depends on the calibration
};
using PreparedLayers = Result<std::vector<PreparedLayer>>;

// Heads first .. of each group of a layer that share a basis.
std::vector<HeadRange> head_groups(const LayerShape& layer, const RecipePart& method);
// So many neighbours each; the last may have fewer.
std::vector<HeadRange> even_groups(const LayerShape& layer, std::int32_t each);
CodecSpec store_codec(std::string_view store);

inline std::int32_t whole(const RecipePart& part, std::string_view key) {
  return static_cast<std::int32_t>(part.count(key));
}

// A group of heads whose codes were made before the sequence began and never change, with the
// recipe's sink, recent and certify. `unit`: rows that are coded together.
PreparedGroup fixed_group(const RecipePart& method, const HeadRange& heads, std::int32_t unit,
                          SidePlan keys, SidePlan values);

// MethodDeclaration::needs_calibration: always, or where the value of some key says so.
bool always(const RecipePart& part);
bool calibrated_by_words(const RecipePart& part);

}  // namespace kvspan::detail
