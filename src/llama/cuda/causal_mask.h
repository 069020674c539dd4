// SPDX-License-Identifier: Apache-2.0
// Which rows the queries of a prompt see, as ggml's attention takes it: 0 or minus infinity in f16.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace kvspan {

struct CausalMask {
  std::int32_t first = 0;  // position of row 0
  std::int32_t rows = 0;   // those beyond the last query are seen by none
  std::int32_t query = 0;  // position of the first query
  std::int32_t queries = 0;
  std::int32_t window = 0;  // positions that a query sees, its own among them; 0: all before it
  bool operator==(const CausalMask&) const = default;
};

// to: [queries, rows].
cudaError_t write_mask(const CausalMask& mask, __half* to, cudaStream_t stream);

}  // namespace kvspan
