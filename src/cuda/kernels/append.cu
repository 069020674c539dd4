// SPDX-License-Identifier: Apache-2.0
// Rows of the caller become f16 rows of the cache's pages.
#include "cuda/kernels/rows.cuh"
#include "cuda/kernels/step.h"

namespace kvspan::cuda {
namespace {

// A head's keys and values of row `row` of the caller's.
__device__ __forceinline__ void append_row(const AppendCall& call, const std::int32_t* row_pages,
                                           int position, int row, int head) {
  const std::int64_t page = row_page_at(row_pages[position / kRowPageTokens], call.row_layer_halves,
                                        head, call.key_dim, call.value_dim);
  const int slot = position % kRowPageTokens;
  __half* const rows = reinterpret_cast<__half*>(call.pages) + page;
  __half* const keys = rows + slot * call.key_dim;
  __half* const values = rows + kRowPageTokens * call.key_dim + slot * call.value_dim;
  const std::int64_t k = row * call.keys.token_stride + head * call.keys.head_stride;
  const std::int64_t v = row * call.values.token_stride + head * call.values.head_stride;
  for (int i = threadIdx.x; i < call.key_dim; i += 128) {
    keys[i] = __float2half(read_number(call.keys.data, k + i, call.keys.type));
  }
  for (int i = threadIdx.x; i < call.value_dim; i += 128) {
    values[i] = __float2half(read_number(call.values.data, v + i, call.values.type));
  }
}

__global__ void __launch_bounds__(128) append_kernel(const __grid_constant__ AppendCall call) {
  const int row = blockIdx.x;
  int index = 0;
  while (index + 1 < call.item_count && call.items[index + 1].tokens_before <= row) ++index;
  const AppendItem& item = call.items[index];
  append_row(call, item.row_pages, item.first_position + row - item.tokens_before, row, blockIdx.y);
}

// One row of each item: its last position.
__global__ void __launch_bounds__(128)
    append_planned_kernel(const __grid_constant__ AppendCall call, const AttendPlan* plan) {
  cudaTriggerProgrammaticLaunchCompletion();  // what reads the rows waits itself
  const AttendItem& item = plan->items[blockIdx.x];
  append_row(call, item.row_pages, item.after.last - 1, blockIdx.x, blockIdx.y);
}

}  // namespace

cudaError_t launch_append(const AppendCall& call, cudaStream_t stream) {
  if (call.total_tokens == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(call.total_tokens), static_cast<unsigned>(call.kv_heads));
  append_kernel<<<grid, 128, 0, stream>>>(call);
  return cudaGetLastError();
}

cudaError_t launch_planned_append(const AppendCall& call, const AttendPlan* plan, int items,
                                  cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(items), static_cast<unsigned>(call.kv_heads));
  append_planned_kernel<<<grid, 128, 0, stream>>>(call, plan);
  return cudaGetLastError();
}

}  // namespace kvspan::cuda
