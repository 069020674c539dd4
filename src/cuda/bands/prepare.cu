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
  using Turns = FoldTurns<kSegments>;
  const int pairs = call.fold_pairs(), warp = static_cast<int>(threadIdx.x) >> 5;
  int tile = block / pairs;
  const int pair = block - tile * pairs, index = find_item(call.fold_tiles_before, call.item_count, tile);
  const AttendItem& item = call.items[index];
  const FoldTiles tiles(call, index, pair);
  const int first = tile * call.fold_blocks, count = min(call.fold_blocks, item.means - first);
  const int block_of = item.first_mean + first, last = block_of + count - 1;
  const FoldMemory memory(call);
  auto* const own = reinterpret_cast<float2*>(shared + memory.turns) + warp * Turns::kOnce * Turns::kStride;
  Turns turns;
  turns.load(call, block_of + Turns::kOnce * warp, last);
  Turns::clear(own);
  read_means(call, tiles, memory, shared);
  std::byte* to[2];
  int tile_of[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int of = tiles.first + min(r, tiles.count - 1), group = of / tiles.of_group;
    tile_of[r] = of - group * tiles.of_group;
    to[r] = call.folded +
            (static_cast<std::int64_t>(group) * call.total_means + item.means_before + first) * call.folded_bytes();
  }
  __syncthreads();
  wait_for_queries();
  multiply_means<kSegments>(call, tiles, memory, shared);
  __syncthreads();
#pragma unroll 1
  for (int i = Turns::kOnce * warp; i < count; i += kWarps * Turns::kOnce) {
    turns.store(own);
    turns.load(call, block_of + i + kWarps * Turns::kOnce, last);
    fold_blocks<kSegments>(call, tiles, i, count, memory, shared, own, to, tile_of);
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
  const int fold_blocks = call.total_fold_tiles * call.fold_pairs();
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
