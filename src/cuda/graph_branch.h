// SPDX-License-Identifier: Apache-2.0
// A stream beside another while that is recorded as a graph: what is launched on it may run at the
// same time. Where it leaves the other, and where it comes back, the kernel that follows may begin
// before the one it follows has ended, and waits itself, as with OverlappingLaunch
// (cuda/kernels/overlapping_launch.h).
#pragma once

#include <cuda_runtime.h>

namespace kvspan::cuda {

class GraphBranch {
 public:
  GraphBranch() = default;
  GraphBranch(const GraphBranch&) = delete;
  GraphBranch& operator=(const GraphBranch&) = delete;
  ~GraphBranch();
  // Of the lowest priority: what comes on the other stream is waited for.
  cudaError_t open();
  bool is_open() const noexcept { return joined_ != nullptr; }

  // The stream, from where `from` is now. Its first kernel waits itself for what it follows.
  cudaError_t fork(cudaStream_t from, cudaStream_t& branch);
  // What comes on `into` next follows both: a kernel that waits itself for the branch's last one,
  // and begins when all else on `into` has ended.
  cudaError_t join(cudaStream_t into);

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t forked_ = nullptr, joined_ = nullptr;
};

}  // namespace kvspan::cuda
