// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/write_pages.h"

namespace kvspan::cuda {
namespace {

__global__ void write_pages_kernel(const __grid_constant__ PageWrites call) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < call.count) call.table[call.at[i]] = call.page[i];
}

}  // namespace

cudaError_t launch_write_pages(const PageWrites& call, cudaStream_t stream) {
  if (call.count == 0) return cudaSuccess;
  write_pages_kernel<<<1, kMaxPageWrites, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace kvspan::cuda
