// SPDX-License-Identifier: Apache-2.0
// The parts of prepare(): one function for each family of methods, and what they share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvspan/calibration.h"
#include "method/coding_plan.h"
#include "method/prepared.h"

namespace kvspan::detail {

// What every family works from.
struct PrepareInput {
  const CacheShape& shape;
  const RecipePart& method;
  const Calibration* calibration;  // checked; null where the recipe needs none
  std::shared_ptr<Ledger> shared;
};

// Heads first .. of each group of a layer that share a basis.
std::vector<HeadRange> head_groups(const LayerShape& layer, const RecipePart& method);
CodecSpec store_codec(std::string_view store);

using PreparedLayers = Result<std::vector<PreparedLayer>>;
// static, fd, rotate, oja, spectral
PreparedLayers prepare_subspace(const PrepareInput& in);
// full, quant
PreparedLayers prepare_full(const PrepareInput& in);
PreparedLayers prepare_quant(const PrepareInput& in);
PreparedLayers prepare_bands(const PrepareInput& in);
// prune, window, streaming
PreparedLayers prepare_tokens(const PrepareInput& in);
// Adds the selector to groups that a method prepared.
Status add_selector(const CacheShape& shape, const RecipePart& selector,
                    std::vector<PreparedLayer>& layers);

}  // namespace kvspan::detail
