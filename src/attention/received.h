// SPDX-License-Identifier: Apache-2.0
// Attention that tokens receive: for methods that keep, weight or learn by what queries look at.
//
// The weights of a softmax are known only when it is over, so this is a second pass: scores are
// computed again and turned into weights with the log-sum-exp that attend_segments gave. It costs
// what scoring costs, for the chosen queries; values are not read. Memory: AttentionScratch only,
// bounded like attend's whatever the number of tokens; no weight is ever stored.
#pragma once

#include <cstdint>
#include <span>

#include "attention/scratch.h"
#include "kvspan/cache.h"
#include "kvspan/team.h"

namespace kvspan {

// For each group g, adds to received[g], [heads of the group, tokens of its list], the weight
// e^(logit - lse) of every token, summed over the query heads of the KV head and over the queries
// from index `first_query` on; with shape [1, tokens] also over the group's KV heads. Tokens that a
// query does not see receive nothing from it. `lse` [n, query_heads] is what attend_segments gave
// for the same arguments, the lists unchanged since. The result is the same bits for any team: each
// token's sum is made by one member, queries in order.
// All members of the team call with equal arguments; begins and ends with a barrier. Fails only for
// lack of memory.
Status received_attention(const LayerShape& layer, HeadGroups groups, const Queries& queries,
                          const TensorView<const float, 2>& lse, std::int32_t first_query,
                          std::span<const TensorView<float, 2>> received, AttentionScratch& scratch,
                          Team& team);

}  // namespace kvspan
