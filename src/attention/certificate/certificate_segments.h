// SPDX-License-Identifier: Apache-2.0
// Tokens of a list of segments as certificates see them.
#pragma once

#include <cstdint>
#include <memory>

#include "attention/store_facts.h"
#include "cache/segments/segment_list.h"
#include "kvspan/cache.h"
#include "kvspan/result.h"

namespace kvspan {

// Of one head of the list, which outlives this. Fails if a coded side keeps no residuals.
Result<std::unique_ptr<StoreFacts>> segment_facts(const LayerShape& layer, const SegmentList& list,
                                                  std::int32_t head);

}  // namespace kvspan
