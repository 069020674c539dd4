// SPDX-License-Identifier: Apache-2.0
// What an attention call does before it reads codes. The three kernels are independent of each
// other and run side by side: each lets the next begin at once, and the first begins when all that
// was launched before has ended.
#pragma once

#include <cuda_runtime.h>

#include "cuda/attend_call.h"

namespace kvspan::cuda {

cudaError_t launch_fold_means(const AttendCall& call, cudaStream_t stream);
// `beside` the kernel launched before.
cudaError_t launch_attend_rows(const AttendCall& call, bool beside, cudaStream_t stream);
cudaError_t launch_move_queries(const AttendCall& call, int processors, bool beside,
                                cudaStream_t stream);
// All three. Fails where a dimension is beyond 256.
cudaError_t launch_prepare(const AttendCall& call, int processors, cudaStream_t stream);

// A launch that need not wait for the one before, where `beside`.
template <class Kernel, class... Arguments>
cudaError_t launch_beside(bool beside, Kernel kernel, int blocks, int threads, std::size_t bytes,
                          cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = beside ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace kvspan::cuda
