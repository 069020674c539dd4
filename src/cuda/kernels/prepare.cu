// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/prepare.h"

#include <algorithm>

#include "cuda/kernels/attend_rows.cuh"
#include "cuda/kernels/fold_means.cuh"
#include "cuda/kernels/move_queries.cuh"

namespace kvspan::cuda {
namespace {

// Blocks of the launch: first those that move queries, then those that attend to rows, then those that
// fold means; long ones first.
struct Blocks {
  int movers_of_head, rows, folds;
};

template <int kSteps, int kLanes, bool kWide>
__global__ void __launch_bounds__(256)
    prepare_kernel(const __grid_constant__ AttendCall call, const Blocks blocks) {
  extern __shared__ __align__(16) char shared[];
  int block = blockIdx.x;
  if (block < blocks.movers_of_head * call.kv_heads) {
    move_queries<kSteps, kWide>(call, block / blocks.movers_of_head, block % blocks.movers_of_head,
                                blocks.movers_of_head,
                                *reinterpret_cast<MoveMemory<kSteps>*>(shared));
    return;
  }
  block -= blocks.movers_of_head * call.kv_heads;
  if (block < blocks.rows) {
    const int repeats = call.query_heads / call.kv_heads;
    const int tiles = (repeats + kRowQueries - 1) / kRowQueries;
    const int part = block / (tiles * call.kv_heads), rest = block % (tiles * call.kv_heads);
    int item = 0;
    while (item + 1 < call.item_count && call.items[item + 1].row_parts_before <= part) ++item;
    attend_rows<kLanes>(call, item, part - call.items[item].row_parts_before, rest / tiles,
                        rest % tiles * kRowQueries, *reinterpret_cast<RowsMemory*>(shared));
    return;
  }
  block -= blocks.rows;
  // A warp for each query head and 32 blocks of an item.
  const int warps = blockDim.x >> 5, warp = threadIdx.x >> 5;
  int unit = block * warps + warp;
  const int head = unit % call.query_heads;
  unit /= call.query_heads;
  float2* const products = reinterpret_cast<float2*>(shared) + warp * 128;
  for (int i = 0; i < call.item_count; ++i) {
    const int units = (call.items[i].means + 31) / 32;
    if (unit < units) return fold_means(call, head, i, 32 * unit, products);
    unit -= units;
  }
}

template <int kSteps, int kLanes>
cudaError_t launch(const AttendCall& call, int processors, cudaStream_t stream) {
  Blocks blocks{0, 0, 0};
  int warps = 4;
  const bool wide = call.chunks > kMaxMoveWarps;
  if (call.groups > 0 && call.total_anchors > 0) {
    warps = std::clamp(call.chunks, 4, kMaxMoveWarps);
    const int rows = call.total_anchors * (call.query_heads / call.kv_heads);
    const int tiles = (rows + kMoveRows - 1) / kMoveRows;
    // About two blocks for each multiprocessor, equally long ones.
    const int most = std::max(1, 2 * processors / call.kv_heads);
    const int each = (tiles + most - 1) / most;
    blocks.movers_of_head = (tiles + each - 1) / each;
    if (call.mean_terms > 0) {
      int units = 0;
      for (int i = 0; i < call.item_count; ++i) units += (call.items[i].means + 31) / 32;
      blocks.folds = (units * call.query_heads + warps - 1) / warps;
    }
  }
  const int repeats = call.query_heads / call.kv_heads;
  blocks.rows =
      call.total_row_parts * call.kv_heads * ((repeats + kRowQueries - 1) / kRowQueries);
  const int count = blocks.movers_of_head * call.kv_heads + blocks.rows + blocks.folds;
  if (count == 0) return cudaSuccess;
  const std::size_t bytes = std::max({sizeof(MoveMemory<kSteps>), sizeof(RowsMemory),
                                      static_cast<std::size_t>(warps) * 128 * sizeof(float2)});
  const auto kernel = wide ? prepare_kernel<kSteps, kLanes, true> : prepare_kernel<kSteps, kLanes, false>;
  kernel<<<static_cast<unsigned>(count), static_cast<unsigned>(32 * warps), bytes, stream>>>(call,
                                                                                           blocks);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_prepare(const AttendCall& call, int processors, cudaStream_t stream) {
  const int dim = std::max(call.key_dim, call.value_dim);
  if (dim <= 64) return launch<2, 4>(call, processors, stream);
  if (dim <= 128) return launch<4, 8>(call, processors, stream);
  if (dim <= 256) return launch<8, 16>(call, processors, stream);
  return cudaErrorInvalidValue;
}

}  // namespace kvspan::cuda
