// SPDX-License-Identifier: Apache-2.0
// Attention of a call's queries over a list of segments: one blockwise softmax, read in place.
//
// Cost: every key and value is read from memory once for all query heads that share it (and once
// per block of kBlockRows query rows in prefill). Memory: AttentionScratch only.
// Error of full-rank segments, f32 arithmetic throughout: a score is off by at most
// (dim + 4) eps |q||k|, a weight by 2^-22 and its score's error, the output by the weights' errors
// and (tokens scored at a time) eps max|v|.
#pragma once

#include <span>

#include "attention/scratch.h"
#include "cache/segments/segment_list.h"
#include "kvspan/cache.h"
#include "kvspan/team.h"

namespace kvspan {

// All members of the team call with equal arguments; begins and ends with a barrier. The groups
// are all KV heads of the layer, in order, each group with a list of its own. out: [n,
// query_heads, value_dim], zeros for a query that sees nothing. `lse`, unless its data is null:
// [n, query_heads], the natural log of the sum of e^logit, -inf where nothing is seen; with it,
// results over parts of the tokens merge: with `adds`, out and lse hold those over other tokens and become those over
// all. Fails only for lack of memory.
Status attend_segments(const LayerShape& layer, HeadGroups groups, const Queries& queries,
                       const TensorView<float, 3>& out, const TensorView<float, 2>& lse,
                       AttentionScratch& scratch, Team& team, bool adds = false);
// The same where all KV heads share one list.
Status attend_segments(const LayerShape& layer, const SegmentList& list, const Queries& queries,
                       const TensorView<float, 3>& out, const TensorView<float, 2>& lse,
                       AttentionScratch& scratch, Team& team, bool adds = false);

// Whether the groups are all KV heads of the layer, in order, with its dimensions.
bool groups_fit(const LayerShape& layer, HeadGroups groups) noexcept;

}  // namespace kvspan
