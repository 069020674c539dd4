// SPDX-License-Identifier: Apache-2.0
// The last kernel of an attention call: parts of the sequence merged, coefficients back to values.
#pragma once

#include <cuda_runtime.h>

#include "cuda/attend_plan.h"

namespace kvspan::cuda {

// overlaps: it follows one kernel alone.
cudaError_t launch_finish(const AttendCall& call, const PlanCapacity& capacity, bool overlaps,
                          cudaStream_t stream);

}  // namespace kvspan::cuda
