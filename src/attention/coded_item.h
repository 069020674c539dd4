// SPDX-License-Identifier: Apache-2.0
// The part of an item that lies in a coded segment: attention in coefficient space.
//
// Keys. The query is moved to where the coefficients are, once per segment (post-RoPE), or once per
// anchor block: q.k = q.mean + (B^T q).c, and for anchored keys, with q_a = R(t_a)^T q,
// q.k = (B^T q_a).c + q_a.Rot(t - t_a) mu. Pre-RoPE keys are rebuilt and turned, row by row. Scores
// are multiplied by the code's gamma.
// Values. Weighted sums stay coefficients until the end of the segment: sum a v = B (sum a c) +
// mean (sum a).
// Floating-point coefficients of a rank that is a multiple of 8 are read in place by the kernels of
// full-rank rows; others are decoded a tile of tokens at a time.
// Source: spec sections 2 and 4.2; in coefficient space first by Saxena et al., 2024 (Eigen
// Attention).
#pragma once

#include <cstddef>

#include "attention/item.h"

namespace kvspan {

// Tokens decoded at a time.
inline constexpr std::int32_t kCodedTokens = kTileTokens;

// Floats that attend_coded needs for any coded segment of the list; 0 when there is none. The
// plan's shapes are set.
std::size_t coded_floats(const AttentionPlan& plan, const SegmentList& list) noexcept;

// Attends to the tokens `part` of a coded segment and merges the outcome into `state`. `work` holds
// coded_floats().
void attend_coded(const AttentionPlan& plan, const AttentionKernels& kernels,
                  const LayerShape& layer, const Queries& queries, const AttentionItem& item,
                  const Segment& segment, IndexRange part, const StateView& state,
                  float* work) noexcept;

}  // namespace kvspan
