// SPDX-License-Identifier: Apache-2.0
#include "method/policies/drop_policy.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/fail.h"
#include "method/selectors/largest.h"
#include "method/state_bytes.h"

namespace kvspan {

Status WindowPolicy::settle(Group& group) {
  const std::int32_t sink = group.sink();
  const std::int32_t excess = group.list().tokens() - sink - size_;
  if (excess > 0) {
    group.select(sink, std::vector<std::uint8_t>(static_cast<std::size_t>(excess), 0));
  }
  return {};
}

Status WindowPolicy::save(const StateWriter&) const {
  return {};
}

Status WindowPolicy::load(Group& group, const StateReader& from) {
  return check_segments(group, {}, from.in);
}

Status PrunePolicy::save(const StateWriter& to) const {
  norms_.save(to.out);
  return {};
}

Status PrunePolicy::load(Group& group, const StateReader& from) {
  KVSPAN_CHECK_OK(check_segments(group, {}, from.in));
  if (from.version < 4) {
    KVSPAN_CHECK_OK(get_between<std::int64_t>("rows seen", 0, kMostTokens, from.in));
  }
  return norms_.load("norm of a key", group.list().tokens(), from.in, from.ledger,
                     MemoryKind::kSketches);
}

void PrunePolicy::truncate(const Group& group, std::int32_t position) noexcept {
  const std::int32_t end = std::min(group.extent().settled_end, position);
  norms_.truncate(std::max(0, group.list().index_of(end) - group.sink()));
}

Status PrunePolicy::settle(Group& group) {
  while (group.waiting() - recent_ >= kUnit) KVSPAN_CHECK_OK(settle_unit(group));
  return {};
}

Status PrunePolicy::settle_unit(Group& group) {
  truncate(group, group.extent().next);  // norms of a unit for which there was no memory
  const std::int32_t sink = group.sink();
  const RowBlock rows = group.read(0, kUnit);
  std::vector<float> norms(norms_.values().size(), 0.0f);
  for (std::size_t t = 0; t < rows.size(); ++t) {
    double sum = 0.0;
    for (std::int32_t h = 0; h < rows.heads; ++h) {
      const float* key = rows.keys_of(h).row(t);
      for (std::int32_t i = 0; i < rows.key_dim; ++i) sum += double{key[i]} * double{key[i]};
    }
    norms.push_back(static_cast<float>(std::sqrt(sum)));
  }
  norms_.add(norms, group.list().ledger(), MemoryKind::kSketches);
  // Shares are of all rows that have left the recent end, dropped ones included.
  const std::int32_t end = rows.positions.back() + 1;
  const std::vector<std::uint8_t> keep =
      largest(norms_.values(), keep_.resolve(end - group.sink_end()));
  group.select(sink, keep);
  group.settle_as_they_are(end);
  norms_.select(0, keep);
  return {};
}

}  // namespace kvspan
