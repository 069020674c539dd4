// SPDX-License-Identifier: Apache-2.0
// Entries of the tables of pages, written in the order of a stream without any copy from the host.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace kvspan::cuda {

inline constexpr int kMaxPageWrites = 256;

struct PageWrites {
  std::int32_t* table = nullptr;
  std::int32_t count = 0;
  std::int32_t at[kMaxPageWrites], page[kMaxPageWrites];
};

cudaError_t launch_write_pages(const PageWrites& call, cudaStream_t stream);

}  // namespace kvspan::cuda
