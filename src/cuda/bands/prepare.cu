// SPDX-License-Identifier: Apache-2.0
// Blocks of three kinds side by side: queries moved to the coefficients of a run of anchors,
// queries folded with the mean of keys for a run of blocks, attention to full-rank rows. None
// takes long; what each waits for is memory.
#include "cuda/bands/prepare.h"

#include <algorithm>

#include "cuda/bands/fold_means.cuh"
#include "cuda/bands/move_queries.cuh"
#include "cuda/kernels/attend_rows.cuh"
#include "cuda/kernels/long_rows.h"
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

// How many blocks of each kind a plan with so many tiles and parts takes.
struct Blocks {
  int move, rows, fold;
  __host__ __device__ Blocks(const AttendCall& call, int move_tiles, int fold_tiles, int row_parts,
                             PrepareKinds kinds)
      : move(kinds.queries ? move_tiles * head_tiles(call.query_heads, call.kv_heads) : 0),
        rows(kinds.rows ? (row_units(call, row_parts) + kWarps - 1) / kWarps : 0),
        fold(kinds.queries ? fold_tiles * call.fold_pairs() : 0) {}
};

// What was launched before may still be running until this is called.
__device__ __forceinline__ void wait_for_queries() {
  cudaGridDependencySynchronize();
}

template <int kSegments, int kTiles>
__device__ __forceinline__ void move_block(const AttendCall& call, int block, char* shared) {
  const int heads = head_tiles(call.query_heads, call.kv_heads);
  int tile = block / heads;
  const int index = find_item(call.plan().move_tiles_before, call.plan().item_count, tile);
  const AttendItem& item = call.plan().items[index];
  const HeadTile head(call, index, block % heads);
  const int first = tile * call.plan().move_anchors;
  const MoveAnchors anchors{item.first_anchor + first,
                            min(call.plan().move_anchors, item.anchors - first),
                            static_cast<std::int64_t>(head.group) * call.plan().total_anchors +
                                item.anchors_before + first};
  move_queries<kSegments, kWarps, kTiles>(call, head, anchors, shared, wait_for_queries);
}

template <int kSegments>
__device__ __forceinline__ void fold_block(const AttendCall& call, int block, char* shared) {
  using Turns = FoldTurns<kSegments>;
  const int pairs = call.fold_pairs(), warp = static_cast<int>(threadIdx.x) >> 5;
  int tile = block / pairs;
  const int pair = block - tile * pairs,
            index = find_item(call.plan().fold_tiles_before, call.plan().item_count, tile);
  const AttendItem& item = call.plan().items[index];
  const FoldTiles tiles(call, index, pair);
  const int first = tile * call.plan().fold_blocks,
            count = min(call.plan().fold_blocks, item.means - first);
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
    to[r] = call.folded + (static_cast<std::int64_t>(group) * call.plan().total_means +
                           item.means_before + first) *
                              call.folded_bytes();
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
    prepare_kernel(const __grid_constant__ AttendCall call, PrepareKinds kinds) {
  extern __shared__ __align__(128) char shared[];
  cudaTriggerProgrammaticLaunchCompletion();  // who reads what is made here waits itself
  ask_for_parameters(call);
  const Blocks blocks(call, call.plan().total_move_tiles, call.plan().total_fold_tiles,
                      call.plan().total_row_parts, kinds);
  // Those that take longest first.
  int block = blockIdx.x;
  if (block < blocks.move) return move_block<kSegments, kTiles>(call, block, shared);
  block -= blocks.move;
  if (block >= blocks.rows) {
    if (block - blocks.rows < blocks.fold) fold_block<kSegments>(call, block - blocks.rows, shared);
    return;
  }
  const int unit = block * kWarps + (static_cast<int>(threadIdx.x) >> 5);
  if (unit < row_units(call, call.plan().total_row_parts))
    attend_row_unit(call, unit, wait_for_queries);
}

using PrepareKernel = void (*)(AttendCall, PrepareKinds);

template <int kSegments>
PrepareKernel kernel_of(int tiles) {
  return tiles == 1 ? prepare_kernel<kSegments, 1> : prepare_kernel<kSegments, 2>;
}

PrepareKernel find_kernel(int key_dim, int tiles) {
  return key_dim <= 64 ? kernel_of<2>(tiles) : key_dim <= 128 ? kernel_of<4>(tiles) : kernel_of<8>(tiles);
}

}  // namespace

cudaError_t launch_prepare(const AttendCall& call, const PlanCapacity& capacity, PrepareKinds kinds,
                           bool overlaps, cudaStream_t stream) {
  if (std::max(call.key_dim, call.value_dim) > 256 || call.rope_pairs > kMaxPairs) {
    return cudaErrorInvalidValue;
  }
  if (capacity.row_warps > 1)
    return kinds.rows ? launch_long_rows(call, capacity, {}, overlaps, stream) : cudaSuccess;
  const Blocks blocks(call, capacity.move_tiles, capacity.fold_tiles, capacity.row_parts, kinds);
  const int count = blocks.move + blocks.rows + blocks.fold;
  if (count == 0) return cudaSuccess;
  const int steps = key_steps_of(call.key_dim), tiles = capacity.few_anchors ? 1 : 2;
  int bytes = blocks.fold > 0 ? FoldMemory(call).bytes : 0;
  if (blocks.move > 0) bytes = std::max(bytes, MoveMemory(steps, call.units, tiles).bytes);
  const PrepareKernel kernel = find_kernel(call.key_dim, tiles);
  const cudaError_t error = allow_shared_bytes(kernel, bytes);
  if (error != cudaSuccess) return error;
  const OverlappingLaunch launch(dim3(static_cast<unsigned>(count)), dim3(32 * kWarps), bytes,
                                 stream, overlaps);
  return cudaLaunchKernelEx(launch.config(), kernel, call, kinds);
}

}  // namespace kvspan::cuda
