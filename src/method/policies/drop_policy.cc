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
  const std::int32_t sink = std::min(group.sink(), group.list().tokens());
  const std::int32_t excess = group.list().tokens() - sink - size_;
  if (excess > 0) {
    group.select(sink, std::vector<std::uint8_t>(static_cast<std::size_t>(excess), 0));
  }
  return {};
}

Status WindowPolicy::save(const StateWriter&) const {
  return {};
}

Status WindowPolicy::load(const Group& group, const StateReader& from) {
  return check_segments(group, {}, from.in);
}

Status PrunePolicy::save(const StateWriter& to) const {
  to.out.put(seen_);
  norms_.save(to.out);
  return {};
}

Status PrunePolicy::load(const Group& group, const StateReader& from) {
  KVSPAN_CHECK_OK(check_segments(group, {}, from.in));
  KVSPAN_TRY(seen_, get_between<std::int64_t>("rows seen", 0, kMostTokens, from.in));
  return norms_.load("norm of a key", group.list().tokens(), from.in, from.ledger,
                     MemoryKind::kSketches);
}

void PrunePolicy::truncate(const Group& group) {
  const std::int32_t sink = std::min(group.sink(), group.list().tokens());
  norms_.truncate(group.settled() - sink);
}

Status PrunePolicy::settle(Group& group) {
  while (group.waiting() - recent_ >= kUnit) KVSPAN_CHECK_OK(settle_unit(group));
  return {};
}

Status PrunePolicy::settle_unit(Group& group) {
  truncate(group);  // norms of a unit for which there was no memory
  const std::int32_t sink = std::min(group.sink(), group.list().tokens());
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
  const std::vector<std::uint8_t> keep = largest(norms_.values(), keep_.resolve(seen_ + kUnit));
  group.select(sink, keep);
  seen_ += kUnit;
  group.settle_as_they_are(
      static_cast<std::int32_t>(std::count(keep.end() - kUnit, keep.end(), std::uint8_t{1})));
  norms_.select(0, keep);
  return {};
}

}  // namespace kvspan
