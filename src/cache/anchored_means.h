// SPDX-License-Identifier: Apache-2.0
// What queries make of the mean of anchored keys: u . Rot(t - t_a) mu for all n positions of an
// anchor's block, u the query turned to the anchor. Seen from the middle between the block's two
// halves, at half a position before the anchor, positions lie in pairs k + 1/2 after and before it,
// whose turns have the same cosines and opposite sines:
//     u . Rot(.) mu = c + sum_j A_j cos((k + 1/2) angle_j) +- B_j sin((k + 1/2) angle_j)
// so that two positions cost the products of one. A and B follow from u and mu turned by half a
// position, once for a block; c is what pairs that RoPE does not turn give. Exact but for f32.
// Cost: 4 n bytes for each rotated pair, and the means of all heads. Immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/memory.h"
#include "kvspan/cache.h"

namespace kvspan {

class AnchoredMeans {
 public:
  AnchoredMeans() = default;
  // means [heads, dim], of keys before RoPE; block: n, a multiple of 16. Throws std::bad_alloc.
  AnchoredMeans(const Rope& rope, std::int32_t block, const float* means, std::int32_t heads,
                std::int32_t dim, MemoryKind kind, const std::shared_ptr<Ledger>& ledger);

  // Rotated pairs, padded to a multiple of 4.
  std::int32_t pairs() const noexcept { return pairs_; }
  // Positions of half a block.
  std::int32_t half() const noexcept { return half_; }
  // [pairs][2][half]: cosines, sines; 0 where there is no pair.
  const float* turns() const noexcept { return turns_.as<float>(); }
  // Of a row that fold writes: A [pairs], B [pairs], c and three unused.
  std::int32_t sums() const noexcept { return 2 * pairs_ + 4; }
  // u: [dim], turned to an anchor.
  void fold(const Rope& rope, std::int32_t head, const float* u, float* to) const noexcept;

  std::size_t bytes() const noexcept { return turns_.bytes() + means_.bytes(); }

 private:
  std::int32_t pairs_ = 0, half_ = 0, dim_ = 0;
  Buffer turns_;
  Buffer means_;  // [heads, dim], turned by half a position back
};

}  // namespace kvspan
