// SPDX-License-Identifier: Apache-2.0
// How the kernels of a step are launched: blocks begin while the last of the kernel before end, and wait themselves
// before they read what it writes.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace kvspan::cuda {

class OverlappingLaunch {
 public:
  OverlappingLaunch(dim3 blocks, dim3 threads, int shared_bytes, cudaStream_t stream) {
    config_.gridDim = blocks;
    config_.blockDim = threads;
    config_.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
    config_.stream = stream;
    attributes_[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes_[0].val.programmaticStreamSerializationAllowed = 1;
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

// More shared memory than a kernel gets without asking.
template <class Kernel>
cudaError_t allow_shared_bytes(Kernel kernel, int bytes) {
  if (bytes <= 48 * 1024) return cudaSuccess;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace kvspan::cuda
