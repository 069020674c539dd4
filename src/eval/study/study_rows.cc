// SPDX-License-Identifier: Apache-2.0
#include "eval/study/study_rows.h"

#include <cmath>

namespace kvspan {
namespace {

constexpr std::int32_t kWindowsToDraw = 8;

void add(std::vector<Measured>& to, bool begins, double value, double weight) {
  if (begins) {
    to.push_back({value, weight});
    return;
  }
  Measured& part = to.back();
  part.value = (part.value * part.weight + value * weight) / (part.weight + weight);
  part.weight += weight;
}

}  // namespace

RowParts parts_of(const PerplexityRow& row, std::int32_t context) {
  const bool by_window = !row.blocks.empty() && row.blocks.back().window + 1 >= kWindowsToDraw;
  RowParts out;
  std::int32_t window = -1;
  for (const PositionBlock& block : row.blocks) {
    if (block.position < context / 2) continue;
    const bool begins = !by_window || block.window != window;
    window = block.window;
    add(out.nll_diff, begins, block.nll_diff, block.count);
    add(out.kl, begins, block.kl, block.count);
  }
  return out;
}

Interval dppl_interval(const RowParts& parts, const BootstrapOptions& options) {
  const Interval nats = bootstrap_interval(parts.nll_diff, options);
  return {100.0 * std::expm1(nats.low), 100.0 * std::expm1(nats.high)};
}

double kl_as_dppl_pct(double kl) {
  return 100.0 * std::expm1(kl);
}

Interval kl_interval(const RowParts& parts, const BootstrapOptions& options) {
  return bootstrap_interval(parts.kl, options);
}

}  // namespace kvspan
