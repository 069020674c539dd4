// SPDX-License-Identifier: Apache-2.0
// How the kernels of a step are launched: blocks begin while the last of the kernel before end, and wait themselves
// before they read what it writes.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace kvspan::cuda {

class OverlappingLaunch {
 public:
  // overlaps: false behind more than one kernel, which all have to have ended.
  OverlappingLaunch(dim3 blocks, dim3 threads, int shared_bytes, cudaStream_t stream,
                    bool overlaps = true) {
    config_.gridDim = blocks;
    config_.blockDim = threads;
    config_.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
    config_.stream = stream;
    attributes_[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes_[0].val.programmaticStreamSerializationAllowed = overlaps ? 1 : 0;
    config_.attrs = attributes_;
    config_.numAttrs = 1;
  }
  // The configuration points to the attributes.
  OverlappingLaunch(const OverlappingLaunch&) = delete;
  OverlappingLaunch& operator=(const OverlappingLaunch&) = delete;

  void set_cluster(unsigned blocks) {
    attributes_[1].id = cudaLaunchAttributeClusterDimension;
    attributes_[1].val.clusterDim = {blocks, 1, 1};
    config_.numAttrs = 2;
  }
  const cudaLaunchConfig_t* config() const { return &config_; }

 private:
  cudaLaunchConfig_t config_{};
  cudaLaunchAttribute attributes_[2] = {};
};

// More shared memory than a kernel gets without asking: as much as there is, so that what one
// launch needs takes nothing from what a recorded one was allowed.
template <class Kernel>
cudaError_t allow_shared_bytes(Kernel kernel, int bytes) {
  if (bytes <= 48 * 1024) return cudaSuccess;
  int device = 0, most = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
}

}  // namespace kvspan::cuda
