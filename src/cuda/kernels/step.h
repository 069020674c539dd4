// SPDX-License-Identifier: Apache-2.0
// Launches of the kernels that write to a cache.
#pragma once

#include <cuda_runtime.h>

#include "cuda/step_call.h"

namespace kvspan::cuda {

cudaError_t launch_append(const AppendCall& call, cudaStream_t stream);
cudaError_t launch_encode(const EncodeCall& call, cudaStream_t stream);

}  // namespace kvspan::cuda
