// SPDX-License-Identifier: Apache-2.0
// A step of one new token for each sequence of a batch, recorded with an engine's own work as a
// graph that is replayed for later steps. What differs from step to step, positions, pages and how
// attention is cut, lies in device memory as plans: begin() writes them there with one copy, and
// the graph's kernels read them. Launches are made for somewhat larger plans than those at hand;
// what does not fit them is recorded anew.
//
// Of a layer, queries are worked on as soon as they are there, beside what makes keys and values:
//     one stream      queries(): prepared, then attention to codes
//     another         rows(): keys and values enter the cache, attention to full-rank rows
//     after both      finish(): merged, back to values
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/attend_plan.h"
#include "cuda/device_memory.h"
#include "kvspan/cuda.h"

namespace kvspan {

namespace cuda {
class LayerTables;
struct Sequence;
}  // namespace cuda

class RecordedStep {
 public:
  // The cache outlives it.
  explicit RecordedStep(DeviceCache& cache) : cache_(*cache.impl_) {}

  // What a step is: as the one that was recorded, or to be recorded; or it cannot be, and nothing
  // was done.
  enum class Fit { kNone, kNew, kRecorded };
  // Before the graph, once for all layers: the sequences have a token more, whose rows are to come,
  // and plans are on their way on the stream.
  Result<Fit> begin(std::span<const DeviceStep> steps, cudaStream_t stream);
  // Whether queries() has something to do.
  bool branches(int layer) const { return capacity_of(static_cast<std::size_t>(layer)).parts > 0; }
  // While a graph is recorded, layer by layer. keys and values null: they have entered the cache.
  Status queries(int layer, const DeviceRows& queries, cudaStream_t stream);
  Status rows(int layer, const DeviceRows* keys, const DeviceRows* values,
              const DeviceRows& queries, cudaStream_t stream);
  Status finish(int layer, const DeviceOut& out, cudaStream_t stream);
  // After the graph, on the same stream as begin().
  Status end(std::span<const DeviceStep> steps, cudaStream_t stream);

 private:
  // Layers that have one plan.
  struct Planned {
    std::size_t first;  // of the layers
    cuda::PlanCapacity capacity;
  };
  void group_layers();
  Result<bool> plan(std::span<cuda::Sequence* const> found);
  const cuda::AttendPlan* plan_of(std::size_t layer) const;
  const cuda::PlanCapacity& capacity_of(std::size_t layer) const {
    return planned_[planned_of_[layer]].capacity;
  }

  DeviceCache::Impl& cache_;
  std::vector<Planned> planned_;
  std::vector<std::size_t> planned_of_;  // by layer
  std::vector<cuda::AttendPlan> plans_;  // of the step at hand
  cuda::DeviceMemory memory_;            // for them
  bool recorded_ = false;
};

}  // namespace kvspan
