// SPDX-License-Identifier: Apache-2.0
// What the kernels share that make rows of what a sequence holds.
#pragma once

#include "cuda/step_call.h"

namespace kvspan::cuda {

// Rows [positions, kv_heads, dim] that are written.
struct RowsOut {
  void* data = nullptr;
  std::int64_t token_stride = 0, head_stride = 0;  // in numbers
  RowType type = RowType::kF32;
};

// Positions of one sequence and layer whose rows are wanted, the first of them in row 0.
struct RebuildRows {
  std::int32_t first = 0;
  RowsOut keys, values;
};

// Coded positions that are taken apart at once: tiles from `begin` on, of which [first, last) are
// wanted.
struct RebuildTiles {
  const std::int32_t* code_pages = nullptr;
  std::int32_t begin = 0, held = 0;  // multiples of kTileTokens
  std::int32_t tokens = 0;           // that there is room for: what is beyond those held is nothing
  std::int32_t first = 0, last = 0;
  __half* levels = nullptr;       // [groups][tokens][chunks * 64]: digits about their middle
  float* products = nullptr;      // [groups][tokens][D]: what the synthesis makes of them
  const float* scales = nullptr;  // [groups][D], of the synthesis
};

// layer: what of it does not change; its items are not read.
cudaError_t launch_levels(const EncodeCall& layer, const RebuildTiles& tiles, cudaStream_t stream);
cudaError_t launch_coded_rows(const EncodeCall& layer, const RebuildTiles& tiles,
                              const RebuildRows& rows, cudaStream_t stream);
// Full-rank positions [first, last). layer: as above.
cudaError_t launch_kept_rows(const AppendCall& layer, const std::int32_t* row_pages,
                             std::int32_t first, std::int32_t last, const RebuildRows& rows,
                             cudaStream_t stream);

}  // namespace kvspan::cuda
