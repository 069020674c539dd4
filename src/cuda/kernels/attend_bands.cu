// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/attend_bands.h"

#include "cuda/kernels/attend_bands_kernel.cuh"

namespace kvspan::cuda {
namespace {

template <class Shape>
int shared_bytes(int mean_terms, int tile_bytes, int places) {
  return AttendMemory<Shape>(mean_terms, tile_bytes, places).bytes;
}

// kBlocks: how many of them a multiprocessor should have registers for.
template <int kRows8, int kChunks, int kTeam, int kTeams, bool kUniform2, int kBlocks>
AttendVariant variant() {
  using Shape = AttendShape<kRows8, kChunks, kTeam, kTeams, kUniform2>;
  return {Shape::kRows,        kChunks * kTeam,
          kTeam * kTileTokens, kTeams,
          kUniform2,           reinterpret_cast<const void*>(&attend_bands_kernel<Shape, kBlocks>),
          Shape::kThreads,     &shared_bytes<Shape>};
}

}  // namespace

const AttendVariant* find_variant(const AttendNeed& need) {
  // Narrow ones first, and of equally wide ones those that fill a multiprocessor: one block of 8 to
  // 16 warps. Those with fewer teams are for codes whose tiles are large.
  static const AttendVariant kVariants[] = {
      variant<1, 3, 2, 8, true, 1>(),   variant<1, 4, 2, 8, true, 1>(),
      variant<1, 4, 1, 16, false, 1>(), variant<1, 3, 2, 8, false, 1>(),
      variant<1, 4, 2, 8, false, 1>(),  variant<1, 4, 2, 2, false, 1>(),
      variant<2, 4, 2, 4, true, 1>(),   variant<2, 4, 4, 2, true, 1>(),
      variant<2, 4, 2, 4, false, 1>(),  variant<2, 4, 2, 2, false, 1>(),
      variant<2, 4, 4, 2, false, 1>(),  variant<2, 4, 4, 1, false, 1>(),
      variant<4, 2, 8, 1, true, 1>(),   variant<4, 3, 8, 1, true, 1>(),
      variant<4, 2, 8, 1, false, 1>(),  variant<4, 3, 8, 1, false, 1>(),
  };
  constexpr int kMostShared = 227 * 1024;
  for (const AttendVariant& v : kVariants) {
    if (need.queries > v.rows || need.chunks > v.most_chunks) continue;
    if (v.uniform2 && !need.uniform2) continue;
    // Codes of one width have all chunks of a lone warp's share unrolled.
    if (v.uniform2 && v.tokens == kTileTokens && need.chunks != v.most_chunks) continue;
    if (v.shared_bytes(need.mean_terms, need.tile_bytes, need.chunks * kChunkPlaces) >
        kMostShared) {
      continue;
    }
    return &v;
  }
  return nullptr;
}

int blocks_at_once(const AttendVariant& variant, int shared_bytes) {
  if (cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           shared_bytes) != cudaSuccess) {
    return 0;
  }
  int blocks = 0;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, variant.kernel, variant.threads,
                                                    static_cast<std::size_t>(shared_bytes)) !=
      cudaSuccess) {
    return 0;
  }
  return blocks;
}

cudaError_t launch_attend_bands(const AttendVariant& variant, const AttendCall& call,
                                cudaStream_t stream) {
  const int bytes =
      variant.shared_bytes(call.mean_terms, call.most_tile_bytes, call.chunks * kChunkPlaces);
  void* arguments[] = {const_cast<AttendCall*>(&call)};
  const dim3 grid(static_cast<unsigned>(call.total_parts), static_cast<unsigned>(call.groups));
  return cudaLaunchKernel(variant.kernel, grid, dim3(static_cast<unsigned>(variant.threads)),
                          arguments, static_cast<std::size_t>(bytes), stream);
}

}  // namespace kvspan::cuda
