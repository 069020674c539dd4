// SPDX-License-Identifier: Apache-2.0
// The rows of a list rebuilt at full rank, as attention would see them: what
// reconstruct-then-attend reads (OjaKV, A.3). A mode for comparison: memory and time of a
// full f32 cache, every call.
#pragma once

#include "cache/segments/segment_list.h"

namespace kvspan {

SegmentList reconstructed(const SegmentList& list);

}  // namespace kvspan
