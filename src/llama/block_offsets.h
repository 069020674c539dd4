// SPDX-License-Identifier: Apache-2.0
// The half of a Q4_1 matrix that ggml has no fast layout for. Its blocks of 32 weights are d q + m
// with q from 0 to 15; Q4_0, which ggml multiplies over interleaved rows, has d (q - 8). So
//     W x = W_0 x + B s        W_0: the same d and q as Q4_0, b = m + 8 d of every block in f16,
//                              s: the sums of x over blocks
// takes the same bytes, and one product in 32 is done here. Weights are the same numbers but for
// the rounding of b, which is smaller than that of m where weights are centred.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <vector>

namespace kvspan {

class BlockOffsets {
 public:
  static constexpr std::int64_t kBlock = 32;  // weights
  static constexpr std::int64_t kTile = 16;   // rows

  // Of a Q4_1 matrix whose rows are a multiple of 16, whose Q4_0 part goes to `rest`, of
  // ggml_row_size(Q4_0) bytes a row.
  BlockOffsets(const ggml_tensor* matrix, std::byte* rest);
  static bool fits(const ggml_tensor* matrix);

  // out [out, n] += B s(x).
  // Rows of thread `part` of `parts`; x and out are f32, their columns `x_stride` and `out_stride`
  // numbers apart.
  void add_rows(const float* x, std::int64_t x_stride, std::int64_t columns, int part, int parts,
                float* out, std::int64_t out_stride) const;

 private:
  std::int64_t tiles_, blocks_;
  std::vector<ggml_fp16_t> offsets_;  // [tiles][blocks][16 rows]
};

}  // namespace kvspan
