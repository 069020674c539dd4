// SPDX-License-Identifier: Apache-2.0
#include "cuda/bands/attend_bands.h"

#include "cuda/bands/attend_bands_kernel.cuh"
#include "cuda/kernels/overlapping_launch.h"

namespace kvspan::cuda {
namespace {

template <class Shape>
int shared_bytes(const AttendCall& call) {
  return AttendMemory<Shape>(call).bytes;
}

template <int kRows8, int kChunks, int kTeam, int kTeams, bool kUniform2>
AttendVariant variant() {
  using Shape = AttendShape<kRows8, kChunks, kTeam, kTeams, kUniform2>;
  return {Shape::kRows,
          kChunks * kTeam,
          Shape::kSpare ? kTeam - 1 : 1,
          kTeam * kTileTokens,
          kTeams,
          kUniform2,
          reinterpret_cast<const void*>(&attend_bands_kernel<Shape>),
          Shape::kThreads,
          &shared_bytes<Shape>};
}

}  // namespace

const AttendVariant* find_variant(const AttendNeed& need) {
  // Narrow ones first, and of equally wide ones those that fill a multiprocessor: one block of 8 to
  // 16 warps. Those with fewer teams are for codes whose tiles are large.
  static const AttendVariant kVariants[] = {
      variant<1, 2, 2, 8, true>(),  variant<1, 3, 2, 6, true>(),  variant<1, 4, 2, 6, true>(),
      variant<1, 5, 2, 4, true>(),  variant<1, 6, 2, 4, true>(),  variant<1, 4, 2, 6, false>(),
      variant<1, 5, 2, 4, false>(), variant<1, 6, 2, 4, false>(), variant<1, 8, 2, 3, false>(),
      variant<2, 3, 2, 4, true>(),  variant<2, 4, 2, 4, true>(),  variant<2, 3, 4, 2, true>(),
      variant<2, 4, 4, 2, true>(),  variant<2, 4, 2, 4, false>(), variant<2, 4, 4, 2, false>(),
      variant<2, 4, 4, 1, false>(), variant<4, 2, 8, 1, true>(),  variant<4, 3, 8, 1, true>(),
      variant<4, 2, 8, 1, false>(), variant<4, 3, 8, 1, false>(),
  };
  constexpr int kMostShared = 227 * 1024;
  AttendCall call;  // as the layer's will be
  call.mean_terms = need.mean_terms;
  call.most_tile_bytes = need.tile_bytes;
  for (const AttendVariant& v : kVariants) {
    if (need.queries > v.rows || need.chunks > v.most_chunks) continue;
    // All chunks are unrolled, two at a time: one that is not there reads what follows, for nothing.
    if (v.uniform2 && (!need.uniform2 || need.chunks + v.spare_chunks < v.most_chunks)) continue;
    call.units = v.units(need);
    call.padded_queries = v.rows;
    if (v.shared_bytes(call) <= kMostShared) return &v;
  }
  return nullptr;
}

int blocks_at_once(const AttendVariant& variant, int shared_bytes) {
  // Layers share a kernel, and what one needs must not take from what another was allowed.
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, variant.kernel) != cudaSuccess) return 0;
  if (shared_bytes > attributes.maxDynamicSharedSizeBytes &&
      cudaFuncSetAttribute(variant.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
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
                                const PlanCapacity& capacity, bool overlaps, cudaStream_t stream) {
  const OverlappingLaunch launch(
      dim3(static_cast<unsigned>(capacity.parts), static_cast<unsigned>(call.groups)),
      dim3(static_cast<unsigned>(variant.threads)), variant.shared_bytes(call), stream, overlaps);
  void* arguments[] = {const_cast<AttendCall*>(&call)};
  return cudaLaunchKernelExC(launch.config(), variant.kernel, arguments);
}

}  // namespace kvspan::cuda
