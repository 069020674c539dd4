// SPDX-License-Identifier: Apache-2.0
// Blocks of three kinds side by side: queries moved to the coefficients of kMoveAnchors anchors,
// queries folded with the mean of keys for kFoldBlocks blocks, attention to full-rank rows. None
// takes long; what each waits for is memory.
#include "cuda/bands/prepare.h"

#include <algorithm>

#include "cuda/bands/fold_means.cuh"
#include "cuda/bands/move_queries.cuh"
#include "cuda/kernels/attend_rows.cuh"

namespace kvspan::cuda {
namespace {

constexpr int kWarps = 8;

__host__ __device__ int head_tiles(const AttendCall& call) {
  const int repeats = call.query_heads / call.kv_heads;
  return call.kv_heads * ((repeats + kTileQueries - 1) / kTileQueries);
}

// The item that a tile, of those of all items, belongs to; the tile becomes its own.
__device__ __forceinline__ int find_item(const std::int32_t (&before)[kMaxItems], int count,
                                         int& tile) {
  int item = 0;
#pragma unroll 1
  while (item + 1 < count && before[item + 1] <= tile) ++item;
  tile -= before[item];
  return item;
}

__device__ __forceinline__ void move_block(const AttendCall& call, int block,
                                           const PrepareMemory& memory, char* shared) {
  const int heads = head_tiles(call);
  int tile = block / heads;
  const int index = find_item(call.move_tiles_before, call.item_count, tile);
  const AttendItem& item = call.items[index];
  const HeadTile head(call, index, block % heads);
  const int first = tile * kMoveAnchors;
  const MoveAnchors anchors{item.first_anchor + first, min(kMoveAnchors, item.anchors - first),
                            static_cast<std::int64_t>(head.group) * call.total_anchors +
                                item.anchors_before + first};
  const std::int64_t bytes =
      static_cast<std::int64_t>(call.chunks) * kChunkPlaces * 32 * key_steps_of(call.key_dim);
  if (threadIdx.x == 0) ask_early(call.key_basis + head.head * bytes, bytes);
  read_queries<kWarps>(call, head, memory, shared);
  __syncthreads();
  turn_rows<kWarps>(call, anchors, memory, shared);
  __syncthreads();
  move_rows<kWarps>(call, head, anchors, memory, shared);
}

__device__ __forceinline__ void fold_block(const AttendCall& call, int block,
                                           const PrepareMemory& memory, char* shared) {
  const int heads = head_tiles(call);
  int tile = block / heads;
  const int index = find_item(call.fold_tiles_before, call.item_count, tile);
  const AttendItem& item = call.items[index];
  const HeadTile head(call, index, block % heads);
  const int first = tile * kFoldBlocks;
  read_queries<kWarps>(call, head, memory, shared);
  __syncthreads();
  multiply_means<kWarps>(call, head, memory, shared);
  fold_blocks<kWarps>(call, head, item.first_mean + first, min(kFoldBlocks, item.means - first),
                      static_cast<std::int64_t>(head.group) * call.total_means +
                          item.means_before + first,
                      memory, shared);
}

// kSegments: of 32 numbers of a key.
template <int kSegments>
__global__ void __launch_bounds__(32 * kWarps, 2)
    prepare_kernel(const __grid_constant__ AttendCall call, int fold_blocks, int move_blocks,
                   const PrepareMemory memory) {
  extern __shared__ __align__(16) char shared[];
  cudaTriggerProgrammaticLaunchCompletion();  // who reads what is made here waits itself
  ask_for_parameters(call);
  int block = blockIdx.x;
  if (block < fold_blocks) return fold_block(call, block, memory, shared);
  block -= fold_blocks;
  if (block < move_blocks) return move_block(call, block, memory, shared);
  const int unit = (block - move_blocks) * kWarps + (static_cast<int>(threadIdx.x) >> 5);
  if (unit < row_units(call)) attend_row_unit<kSegments>(call, unit);
}

}  // namespace

cudaError_t launch_prepare(const AttendCall& call, cudaStream_t stream) {
  if (std::max(call.key_dim, call.value_dim) > 256 || call.rope_pairs > kMaxPairs) {
    return cudaErrorInvalidValue;
  }
  const int heads = head_tiles(call);
  const int fold_blocks = call.total_fold_tiles * heads, move_blocks = call.total_move_tiles * heads;
  const int blocks = fold_blocks + move_blocks + (row_units(call) + kWarps - 1) / kWarps;
  if (blocks == 0) return cudaSuccess;
  const PrepareMemory memory(key_steps_of(call.key_dim), call.rope_pairs, call.mean_terms, kWarps);
  const int bytes = fold_blocks + move_blocks > 0 ? memory.bytes : 0;
  const auto kernel = call.key_dim <= 64    ? prepare_kernel<2>
                      : call.key_dim <= 128 ? prepare_kernel<4>
                                            : prepare_kernel<8>;
  if (bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
  }
  kernel<<<static_cast<unsigned>(blocks), 32 * kWarps, static_cast<std::size_t>(bytes), stream>>>(
      call, fold_blocks, move_blocks, memory);
  return cudaGetLastError();
}

}  // namespace kvspan::cuda
