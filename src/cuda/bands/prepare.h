// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "cuda/attend_plan.h"

namespace kvspan::cuda {

// What a launch does: prepare queries for codes, attend to full-rank rows.
struct PrepareKinds {
  bool queries = true, rows = true;
};

// What an attention call does beside reading codes: queries moved and folded for those who read
// them, and attention to full-rank rows. Fails where a dimension is beyond 256.
// overlaps: it follows one kernel alone.
cudaError_t launch_prepare(const AttendCall& call, const PlanCapacity& capacity, PrepareKinds kinds,
                           bool overlaps, cudaStream_t stream);

}  // namespace kvspan::cuda
