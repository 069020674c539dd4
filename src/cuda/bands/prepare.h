// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "cuda/attend_call.h"

namespace kvspan::cuda {

// What an attention call does beside reading codes: queries moved and folded for those who read
// them, and attention to full-rank rows. Fails where a dimension is beyond 256.
cudaError_t launch_prepare(const AttendCall& call, cudaStream_t stream);

}  // namespace kvspan::cuda
