// SPDX-License-Identifier: Apache-2.0
// What queries make of the mean of anchored keys: u . Rot(t - t_a) mu for all n positions of an
// anchor's block, u the query turned to the anchor. Seen from the middle between the block's two
// halves, at half a position before the anchor, positions lie in pairs k + 1/2 after and before it,
// whose turns have the same cosines and opposite sines:
//     u . Rot(.) mu = c + sum_j A_j cos((k + 1/2) angle_j) +- B_j sin((k + 1/2) angle_j)
// so that two positions cost the products of one. A and B follow from u and mu turned by half a
// position, once for a block; c is what pairs that RoPE does not turn give. Pairs that turn by less
// than kSlow radians in half a block are met together, as four even and four odd Chebyshev
// polynomials of the position; what these leave out is below kError times |u| |mu| (the next
// coefficient is 2 J_8(kSlow)). Exact but for that and f32.
// Cost: 4 n bytes for each term, 32 for each slow pair, and the means of all heads. Immutable.
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

  static constexpr double kSlow = 1.25, kError = 1.5e-6;

  // Rotated pairs, padded to a multiple of 4.
  std::int32_t pairs() const noexcept { return pairs_; }
  // Those that are met alone, and polynomials; a multiple of 4, at most pairs().
  std::int32_t terms() const noexcept { return terms_; }
  // Terms, excluding padding.
  std::int32_t used_terms() const noexcept {
    return alone_ < rotated_ ? alone_ + static_cast<std::int32_t>(kOrders) : rotated_;
  }
  // Positions of half a block.
  std::int32_t half() const noexcept { return half_; }
  // [terms][2][half]: cosines, or the even polynomial; sines, or the odd one; 0 beyond the last.
  const float* turns() const noexcept { return turns_.as<float>(); }
  // Of a row that fold writes: A [terms] and room up to pairs, B likewise, c four times.
  std::int32_t sums() const noexcept { return 2 * pairs_ + 4; }
  // u: [dim], turned to an anchor. Kernels have faster ones (attention/bands/kernels/bands_kernels.h).
  void fold(std::int32_t head, const float* u, float* to) const noexcept;

  // What fold reads: pairs that RoPE turns, and whether their two numbers are neighbours; those
  // that are met alone, the others being slow; means, [dim], turned by half a position back; of
  // slow pairs, an even number, [2][4]: of cosine and sine, by polynomial.
  std::int32_t rotated() const noexcept { return rotated_; }
  bool neighbours() const noexcept { return neighbours_; }
  std::int32_t alone() const noexcept { return alone_; }
  std::int32_t dim() const noexcept { return dim_; }
  const float* mean(std::int32_t head) const noexcept {
    return means_.as<float>() + static_cast<std::ptrdiff_t>(head) * dim_;
  }
  const float* slow() const noexcept { return slow_.as<float>(); }

  std::size_t bytes() const noexcept { return turns_.bytes() + slow_.bytes() + means_.bytes(); }

 private:
  static constexpr std::size_t kOrders = 4;
  void set_slow(const Rope& rope, float* turns);

  std::int32_t pairs_ = 0, terms_ = 0, half_ = 0, dim_ = 0, rotated_ = 0;
  bool neighbours_ = false;
  std::int32_t alone_ = 0;  // pairs; those after them are slow
  Buffer turns_;
  Buffer slow_;   // [slow pairs][2][kOrders]
  Buffer means_;  // [heads, dim]
};

}  // namespace kvspan
