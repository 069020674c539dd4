// SPDX-License-Identifier: Apache-2.0
// Attention to many full-rank f16 rows: all of sequences that are not coded. As attend_rows.cuh
// does it, but that the warps of a block share a part and leave one result of it.
#pragma once

#include <cuda_runtime.h>

#include "cuda/attend_plan.h"

namespace kvspan::cuda {

// One new row for each item, at its last position.
struct NewRows {
  RowsPointer keys, values;
  bool there = false;
};

// For plans whose row_warps say so. New rows enter the cache here. overlaps: it follows one kernel
// alone.
cudaError_t launch_long_rows(const AttendCall& call, const PlanCapacity& capacity,
                             const NewRows& fresh, bool overlaps, cudaStream_t stream);

}  // namespace kvspan::cuda
