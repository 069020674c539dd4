// SPDX-License-Identifier: Apache-2.0
#include "attention/add_sinks.h"

#include <algorithm>
#include <cmath>

namespace kvspan {

void add_sinks(const LayerShape& layer, const TensorView<float, 3>& out,
               const TensorView<float, 2>& lse, Team& team) noexcept {
  for (int i; (i = team.take()) < static_cast<int>(out.shape[0]);) {
    for (std::size_t h = 0; h < out.shape[1]; ++h) {
      float& own = lse.row(i)[h];
      const double sink = layer.sinks[h], most = std::max(double{own}, sink);
      const double all = most + std::log(std::exp(own - most) + std::exp(sink - most));
      const auto share = static_cast<float>(std::exp(own - all));
      own = static_cast<float>(all);
      float* row = out.row(i, h);
      for (std::size_t j = 0; j < out.shape[2]; ++j) row[j] *= share;
    }
  }
  team.barrier();
}

}  // namespace kvspan
