// SPDX-License-Identifier: Apache-2.0
// Sinks: a logit for each query head that takes its share of the weights and gives no value, as if
// every query saw one more token whose value is 0. Known to the layer alone, so they join once,
// after all tokens' parts.
#pragma once

#include "kvspan/cache.h"
#include "kvspan/team.h"
#include "kvspan/tensor_view.h"

namespace kvspan {

// out [n, query heads, value_dim] and lse [n, query heads], natural, become those with the layer's
// sinks, of which there is one for each head. All members of the team call; begins after a barrier
// and ends with one.
void add_sinks(const LayerShape& layer, const TensorView<float, 3>& out,
               const TensorView<float, 2>& lse, Team& team) noexcept;

}  // namespace kvspan
