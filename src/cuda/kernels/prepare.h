// SPDX-License-Identifier: Apache-2.0
// The first kernel of an attention call: all that does not need coded tokens, in one launch.
#pragma once

#include <cuda_runtime.h>

#include "cuda/attend_call.h"

namespace kvspan::cuda {

// processors: of the device. Fails where a dimension is beyond 256.
cudaError_t launch_prepare(const AttendCall& call, int processors, cudaStream_t stream);

}  // namespace kvspan::cuda
