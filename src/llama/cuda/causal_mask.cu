// SPDX-License-Identifier: Apache-2.0
#include "llama/cuda/causal_mask.h"

namespace kvspan {
namespace {

__global__ void causal_mask_kernel(const CausalMask mask, __half* to) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= mask.rows) return;
  const int position = mask.first + row, query = mask.query + static_cast<int>(blockIdx.y);
  const bool seen = position <= query && (mask.window == 0 || position > query - mask.window);
  to[static_cast<std::int64_t>(blockIdx.y) * mask.rows + row] = __ushort_as_half(seen ? 0 : 0xfc00);
}

}  // namespace

cudaError_t write_mask(const CausalMask& mask, __half* to, cudaStream_t stream) {
  constexpr unsigned kThreads = 256;
  const dim3 blocks((static_cast<unsigned>(mask.rows) + kThreads - 1) / kThreads,
                    static_cast<unsigned>(mask.queries));
  causal_mask_kernel<<<blocks, kThreads, 0, stream>>>(mask, to);
  return cudaGetLastError();
}

}  // namespace kvspan
