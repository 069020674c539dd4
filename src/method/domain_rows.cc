// SPDX-License-Identifier: Apache-2.0
#include "method/domain_rows.h"

#include <algorithm>

#include "cache/rope.h"

namespace kvspan {

Matrix domain_rows(const RowBlock& block, std::size_t first, std::size_t n, std::int32_t first_head,
                   const CodeStyle& style) {
  const auto d = static_cast<std::size_t>(style.dim);
  const bool keys = style.domain != Domain::kValue;
  Matrix rows(n, static_cast<std::size_t>(style.heads) * d);
  for (std::size_t t = 0; t < n; ++t) {
    const std::int32_t position = block.positions[first + t];
    for (std::int32_t h = 0; h < style.heads; ++h) {
      const MatrixView from =
          keys ? block.keys_of(first_head + h) : block.values_of(first_head + h);
      float* to = rows.row(t) + static_cast<std::size_t>(h) * d;
      std::copy_n(from.row(first + t), d, to);
      if (style.domain == Domain::kPreRopeKey) {
        rope_unrotate(*style.rope, position, to);
      } else if (style.domain == Domain::kAnchoredKey) {
        // R(t) k0 -> Rot(t - t_a) k0.
        rope_unrotate(*style.rope, anchor_position(position, style.anchor_block), to);
      }
    }
  }
  return rows;
}

}  // namespace kvspan
