// SPDX-License-Identifier: Apache-2.0
// Blocks of three kinds side by side: queries moved to the coefficients of a run of anchors,
// queries folded with the mean of keys for a run of blocks, attention to full-rank rows. None
// takes long; what each waits for is memory.
#include "cuda/bands/prepare.h"

#include <algorithm>

#include "cuda/bands/fold_means.cuh"
#include "cuda/bands/move_queries.cuh"
#include "cuda/kernels/attend_rows.cuh"
#include "cuda/kernels/overlapping_launch.h"

namespace kvspan::cuda {
namespace {

constexpr int kWarps = kPrepareWarps;

// The item that a tile, of those of all items, belongs to; the tile becomes its own.
__device__ __forceinline__ int find_item(const std::int32_t (&before)[kMaxItems], int count,
                                         int& tile) {
  int item = 0;
#pragma unroll 1
  while (item + 1 < count && before[item + 1] <= tile) ++item;
  tile -= before[item];
  return item;
}

// What was launched before may still be running until this is called.
__device__ __forceinline__ void wait_for_queries() {
  cudaGridDependencySynchronize();
}

template <int kSegments, int kTiles>
__device__ __forceinline__ void move_block(const AttendCall& call, int block, char* shared) {
  const int heads = head_tiles(call.query_heads, call.kv_heads);
  int tile = block / heads;
  const int index = find_item(call.move_tiles_before, call.item_count, tile);
  const AttendItem& item = call.items[index];
  const HeadTile head(call, index, block % heads);
  const int first = tile * call.move_anchors;
  const MoveAnchors anchors{item.first_anchor + first, min(call.move_anchors, item.anchors - first),
                            static_cast<std::int64_t>(head.group) * call.total_anchors +
                                item.anchors_before + first};
  move_queries<kSegments, kWarps, kTiles>(call, head, anchors, shared, wait_for_queries);
}

template <int kSegments>
__device__ __forceinline__ void fold_block(const AttendCall& call, int block, char* shared) {
  constexpr int kBlocks = fold_tile(32 * kSegments);
  const int heads = head_tiles(call.query_heads, call.kv_heads), warp = static_cast<int>(threadIdx.x) >> 5;
  int tile = block / heads;
  const int index = find_item(call.fold_tiles_before, call.item_count, tile);
  const AttendItem& item = call.items[index];
  const HeadTile head(call, index, block % heads);
  const int first = tile * call.fold_blocks, count = min(call.fold_blocks, item.means - first);
  const std::int64_t slot = static_cast<std::int64_t>(head.group) * call.total_means + item.means_before + first;
  const FoldMemory memory(call);
  FoldTurns<kWarps, kBlocks, kSegments> turns;
  turns.load(call, item.first_mean + first, min(kBlocks, count));
  read_means<kWarps>(call, head.head, memory, shared);
  prefetch_numbers(call.queries.data, head.first, call.queries.type);
#pragma unroll 1
  for (int done = 0; done < count; done += kBlocks) {
    turns.store(call, memory, shared);
    const int left = count - done - kBlocks;
    if (left > 0) turns.load(call, item.first_mean + first + done + kBlocks, min(kBlocks, left));
    __syncthreads();
    if (done == 0) {
      wait_for_queries();
      if (warp < kTileQueries) multiply_means(call, head, warp, memory, shared);
      __syncthreads();
    }
    fold_blocks<kWarps, kBlocks>(call, head, min(kBlocks, count - done), slot + done, memory, shared);
  }
}

// kSegments: of 32 numbers of a key. kTiles: of 16 moved rows. A processor has room for two blocks.
template <int kSegments, int kTiles>
__global__ void __launch_bounds__(32 * kWarps, 2)
    prepare_kernel(const __grid_constant__ AttendCall call, int row_blocks, int move_blocks) {
  extern __shared__ __align__(128) char shared[];
  cudaTriggerProgrammaticLaunchCompletion();  // who reads what is made here waits itself
  ask_for_parameters(call);
  // Those that take longest first.
  int block = blockIdx.x;
  if (block < move_blocks) return move_block<kSegments, kTiles>(call, block, shared);
  block -= move_blocks;
  if (block >= row_blocks) return fold_block<kSegments>(call, block - row_blocks, shared);
  const int unit = block * kWarps + (static_cast<int>(threadIdx.x) >> 5);
  if (unit < row_units(call)) attend_row_unit(call, unit, wait_for_queries);
}

using PrepareKernel = void (*)(AttendCall, int, int);

template <int kSegments>
PrepareKernel kernel_of(int tiles) {
  return tiles == 1 ? prepare_kernel<kSegments, 1> : prepare_kernel<kSegments, 2>;
}

PrepareKernel find_kernel(int key_dim, int tiles) {
  return key_dim <= 64 ? kernel_of<2>(tiles) : key_dim <= 128 ? kernel_of<4>(tiles) : kernel_of<8>(tiles);
}

}  // namespace

cudaError_t launch_prepare(const AttendCall& call, cudaStream_t stream) {
  if (std::max(call.key_dim, call.value_dim) > 256 || call.rope_pairs > kMaxPairs) {
    return cudaErrorInvalidValue;
  }
  const int heads = head_tiles(call.query_heads, call.kv_heads);
  const int move_blocks = call.total_move_tiles * heads;
  const int fold_blocks = call.total_fold_tiles * heads;
  const int row_blocks = (row_units(call) + kWarps - 1) / kWarps;
  const int blocks = fold_blocks + move_blocks + row_blocks;
  if (blocks == 0) return cudaSuccess;
  const int steps = key_steps_of(call.key_dim), tiles = call.move_anchors == kMoveAnchors ? 1 : 2;
  int bytes = fold_blocks > 0 ? FoldMemory(call).bytes : 0;
  if (move_blocks > 0) bytes = std::max(bytes, MoveMemory(steps, call.units, tiles).bytes);
  const PrepareKernel kernel = find_kernel(call.key_dim, tiles);
  const cudaError_t error = allow_shared_bytes(kernel, bytes);
  if (error != cudaSuccess) return error;
  const OverlappingLaunch launch(dim3(static_cast<unsigned>(blocks)), dim3(32 * kWarps), bytes, stream);
  return cudaLaunchKernelEx(launch.config(), kernel, call, row_blocks, move_blocks);
}

}  // namespace kvspan::cuda
