// SPDX-License-Identifier: Apache-2.0
// Looks at activations that no cache sees, while the graph is computed.
#pragma once

#include <cstdint>
#include <span>

#include "kvspan/tensor_view.h"

namespace kvspan {

// Calls come in the order of the layers, one at a time, from a thread of the engine. Rows are those
// of the batch; `positions` are theirs.
class ActivationObserver {
 public:
  virtual ~ActivationObserver() = default;
  // The residual stream that enters a layer: [n, hidden].
  virtual void on_layer_input(int layer, TensorView<const float, 2> rows,
                              std::span<const std::int32_t> positions) = 0;
  // What attention gives (after the output matrix) to a norm that follows it: [n, hidden]. Not
  // called for layers without such a norm.
  virtual void on_post_norm_input(int layer, TensorView<const float, 2> rows,
                                  std::span<const std::int32_t> positions) = 0;
};

}  // namespace kvspan
