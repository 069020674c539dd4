// SPDX-License-Identifier: Apache-2.0
// Attention over coded tokens on the device: which kernel fits a group's shape, and its launch.
#pragma once

#include <cuda_runtime.h>

#include "cuda/attend_plan.h"

namespace kvspan::cuda {

// What a group's codes ask of a kernel.
struct AttendNeed {
  int queries, chunks;
  int refined;    // chunks that are scored twice, at most (score_units.h)
  bool uniform2;  // all digits have 2 bits
  int tile_bytes, mean_terms;
};

// A shape of the kernel, by the padded queries and chunks of a group.
struct AttendVariant {
  int rows, most_chunks;  // what it takes
  int spare_chunks;       // with digits of 2 bits: how many fewer it takes at most
  int tokens;             // of a step: parts should be multiples of so many, times teams
  int teams;
  bool uniform2;
  const void* kernel;
  int threads;
  int (*shared_bytes)(const AttendCall& call);

  // Of a group at most.
  int units(const AttendNeed& need) const {
    return uniform2 ? most_chunks + (need.refined + 1) / 2 * 2 : need.chunks + need.refined;
  }
};

// The first that fits, also in shared memory; null: none does.
const AttendVariant* find_variant(const AttendNeed& need);
// Blocks that a multiprocessor holds at once; also allows the kernel its shared memory. 0 on
// failure, which cudaGetLastError tells.
int blocks_at_once(const AttendVariant& variant, int shared_bytes);
// After launch_prepare. overlaps: its blocks may begin, and take their places, while that is still
// running.
cudaError_t launch_attend_bands(const AttendVariant& variant, const AttendCall& call,
                                const PlanCapacity& capacity, bool overlaps, cudaStream_t stream);

}  // namespace kvspan::cuda
