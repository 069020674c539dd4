// SPDX-License-Identifier: Apache-2.0
#include "method/policies/unit_policy.h"

#include "base/fail.h"
#include "method/state_bytes.h"

namespace kvspan {

Status UnitPolicy::settle(Group& group) {
  const std::int32_t units = (group.waiting() - plan_->recent) / plan_->unit;
  if (units < 1) return {};
  const RowBlock rows = group.read(0, units * plan_->unit);
  for (std::int32_t i = 0; i < units; ++i) {
    KVSPAN_CHECK_OK(settle_unit(group, rows, static_cast<std::size_t>(i * plan_->unit)));
  }
  return {};
}

Status UnitPolicy::save(const StateWriter&) const {
  return {};
}

Status UnitPolicy::load(Group& group, const StateReader& from) {
  return check_segments(group, {.plan = plan_.get()}, from.in);
}

}  // namespace kvspan
