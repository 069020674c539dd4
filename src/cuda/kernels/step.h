// SPDX-License-Identifier: Apache-2.0
// Launches of the kernels that write to a cache.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/step_call.h"

namespace kvspan::cuda {

cudaError_t launch_append(const AppendCall& call, cudaStream_t stream);
// One row for each item of a plan in device memory, at the item's last position.
cudaError_t launch_planned_append(const AppendCall& call, const AttendPlan* plan, int items,
                                  cudaStream_t stream);

// Memory of the device that coding works in: what is more than fits it is coded piece by piece.
struct EncodeScratch {
  float* components = nullptr;
  std::size_t bytes = 0;
};
// For so many half tiles at once.
std::size_t encode_scratch_bytes(const EncodeCall& call, std::int32_t halves);
cudaError_t launch_encode(const EncodeCall& call, const EncodeScratch& scratch,
                          cudaStream_t stream);

}  // namespace kvspan::cuda
