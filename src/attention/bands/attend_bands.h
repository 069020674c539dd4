// SPDX-License-Identifier: Apache-2.0
// Attention over tokens coded by bands, read in place: codes are unpacked once for all query heads
// of the group, both products are products of small integers, and values are summed as coefficients
// until the end.
//
//   score   q.k^ = (B_k' R(t_a)' q) . c^ + (R(t_a)' q) . Rot(t - t_a) mu: the query is turned and
//           projected once for an anchor's block, times the steps, and rounded to 8 bits with a
//           scale for each range of components of equal width
//           Keys coded before RoPE are rebuilt, 64 tokens at a time in working memory, turned to
//           their positions and met by the query as it is: exact but for f32, and slow
//   values  sum w v^ = B_v (sum w c^) + m sum w: weights times gains rounded to 7 bits with a scale
//           for 128 tokens
//           stretches of 128 tokens that hardly count count as means (StretchSoftmax::kLightShare)
// Error of the roundings: a score is off by at most the sum over ranges of scale / 2 times the gain
// times sum |code + 1/2|, an output by its weights' roundings, 1/254 of the largest weight in 128
// tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/scratch.h"
#include "cache/bands/bands_store.h"
#include "kvspan/cache.h"
#include "kvspan/team.h"
#include "kvspan/tensor_view.h"

namespace kvspan {

// The KV heads of one group, those of the stores, from `first_head` on: `keys` and `values` hold
// the same tokens (and may be the same store). some: the tiles that are read,
// increasing; empty: all. queries, out and lse (natural) are of all heads of
// the layer, [n, query_heads, ...]; only the group's are read and written. With `adds`, out and lse
// hold the attention to other tokens, and become that to all of them. All members of the team call
// with equal arguments; begins and ends with a barrier. Same bits for any team. Fails only for lack
// of memory.
Status attend_bands(const LayerShape& layer, std::int32_t first_head, const BandsStore& keys,
                    const BandsStore& values, std::span<const std::int32_t> some,
                    const Queries& queries, const TensorView<float, 3>& out,
                    const TensorView<float, 2>& lse, bool adds, AttentionScratch& scratch,
                    Team& team);

}  // namespace kvspan
