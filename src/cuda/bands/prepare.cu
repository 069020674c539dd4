// SPDX-License-Identifier: Apache-2.0
// Blocks of three kinds side by side: queries folded with the mean of keys, queries moved to the
// coefficients of anchors, attention to full-rank rows. What each waits for is memory, so that all
// should be there at once. The first kind needs few registers and is a kernel of its own.
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

// A run of anchors of one item, for one tile of heads. What does not depend on the queries is asked
// for before them.
__device__ __forceinline__ void move_run(const AttendCall& call, int block,
                                         const PrepareMemory& memory, char* shared) {
  static_assert(kWarps == kMoveAnchors);
  const int warp = threadIdx.x >> 5, heads = head_tiles(call);
  int run = block / heads;
  const int index = find_item(call.move_runs_before, call.item_count, run);
  const AttendItem& item = call.items[index];
  const HeadTile head(call, index, block % heads);
  const int begin = run * call.move_anchors, end = min(begin + call.move_anchors, item.anchors);
  const auto anchors_at = [&](int at) {
    return MoveAnchors{item.first_anchor + at, min(kMoveAnchors, end - at),
                       static_cast<std::int64_t>(head.group) * call.total_anchors +
                           item.anchors_before + at};
  };
  const std::int64_t bytes =
      static_cast<std::int64_t>(call.chunks) * kChunkPlaces * 32 * key_steps_of(call.key_dim);
  if (threadIdx.x == 0) ask_early(call.key_basis + head.head * bytes, bytes);
  if (threadIdx.x == 32) {
    ask_early(call.key_scales + head.head * call.chunks * kChunkPlaces,
              call.chunks * kChunkPlaces * 4);
  }
  AnchorTurns turns;
  turns.read(call, anchors_at(begin), warp);
  read_queries<kWarps>(call, head, memory, shared);
  __syncthreads();
#pragma unroll 1
  for (int at = begin; at < end; at += kMoveAnchors) {
    turn_rows(call, turns, warp, memory, shared);
    if (at + kMoveAnchors < end) turns.read(call, anchors_at(at + kMoveAnchors), warp);
    __syncthreads();
    move_rows<kWarps>(call, head, anchors_at(at), memory, shared);
    __syncthreads();
  }
}

// A run of blocks of the mean of one item, for one tile of heads.
__device__ __forceinline__ void fold_run(const AttendCall& call, int block,
                                         const PrepareMemory& memory, char* shared) {
  const int heads = head_tiles(call);
  int run = block / heads;
  const int index = find_item(call.fold_runs_before, call.item_count, run);
  const AttendItem& item = call.items[index];
  const HeadTile head(call, index, block % heads);
  const int begin = run * call.fold_means, end = min(begin + call.fold_means, item.means);
  if (threadIdx.x == 0) {
    constexpr int kTurns = kMeanBlock / kTurnStep;
    ask_early(call.turns + static_cast<std::int64_t>(item.first_mean + begin) * kTurns *
                               call.rope_pairs,
              static_cast<std::int64_t>(end - begin) * kTurns * call.rope_pairs * 8);
  }
  read_queries<kWarps>(call, head, memory, shared);
  __syncthreads();
  multiply_means<kWarps>(call, head, memory, shared);
#pragma unroll 1
  for (int at = begin; at < end; at += kFoldBlocks) {
    fold_blocks<kWarps>(call, head, item.first_mean + at, min(kFoldBlocks, end - at),
                        static_cast<std::int64_t>(head.group) * call.total_means +
                            item.means_before + at,
                        memory, shared);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(32 * kWarps, kFoldAtOnce)
    fold_kernel(const __grid_constant__ AttendCall call, const PrepareMemory memory) {
  extern __shared__ __align__(16) char shared[];
  cudaTriggerProgrammaticLaunchCompletion();  // nothing of it is read by the next kernel
  ask_for_parameters(call);
  fold_run(call, blockIdx.x, memory, shared);
}

// kSegments: of 32 numbers of a key.
template <int kSegments>
__global__ void __launch_bounds__(32 * kWarps, kMoveAtOnce)
    prepare_kernel(const __grid_constant__ AttendCall call, int move_blocks,
                   const PrepareMemory memory) {
  extern __shared__ __align__(16) char shared[];
  ask_for_parameters(call);
  const int block = blockIdx.x;
  if (block < move_blocks) return move_run(call, block, memory, shared);
  const int unit = (block - move_blocks) * kWarps + (static_cast<int>(threadIdx.x) >> 5);
  if (unit < row_units(call)) attend_row_unit<kSegments>(call, unit);
}

template <class Kernel, class... Arguments>
cudaError_t launch(Kernel kernel, int blocks, int bytes, bool beside, cudaStream_t stream,
                   const Arguments&... arguments) {
  if (bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(32 * kWarps);
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = beside ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace

cudaError_t launch_prepare(const AttendCall& call, cudaStream_t stream) {
  if (std::max(call.key_dim, call.value_dim) > 256 || call.rope_pairs > kMaxPairs) {
    return cudaErrorInvalidValue;
  }
  const int heads = head_tiles(call);
  const int fold_blocks = call.total_fold_runs * heads, move_blocks = call.total_move_runs * heads;
  const int blocks = move_blocks + (row_units(call) + kWarps - 1) / kWarps;
  const PrepareMemory memory(key_steps_of(call.key_dim), call.rope_pairs, call.mean_terms, kWarps);
  if (fold_blocks > 0) {
    const cudaError_t error = launch(fold_kernel, fold_blocks, memory.bytes, false, stream, call, memory);
    if (error != cudaSuccess) return error;
  }
  if (blocks == 0) return cudaSuccess;
  const auto kernel = call.key_dim <= 64    ? prepare_kernel<2>
                      : call.key_dim <= 128 ? prepare_kernel<4>
                                            : prepare_kernel<8>;
  return launch(kernel, blocks, move_blocks > 0 ? memory.bytes : 0, fold_blocks > 0, stream, call,
                move_blocks, memory);
}

}  // namespace kvspan::cuda
