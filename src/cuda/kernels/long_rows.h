// SPDX-License-Identifier: Apache-2.0
// Attention to many full-rank f16 rows: all of sequences that are not coded. As attend_rows.cuh does it, but that the
// warps of a block share a part and leave one result of it.
#pragma once

#include <cuda_runtime.h>

#include "cuda/attend_plan.h"

namespace kvspan::cuda {

// For plans whose row_warps say so. overlaps: it follows one kernel alone.
cudaError_t launch_long_rows(const AttendCall& call, const PlanRoom& room, bool overlaps, cudaStream_t stream);

}  // namespace kvspan::cuda
