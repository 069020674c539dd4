// SPDX-License-Identifier: Apache-2.0
#include "method/policies/fixed_policy.h"

namespace kvspan {

Status FixedPolicy::settle_unit(Group& group, const RowBlock& rows, std::size_t first) {
  const OneCode keys(plan().keys ? plan().keys->start : nullptr);
  const OneCode values(plan().values ? plan().values->start : nullptr);
  return group.code(rows, first, static_cast<std::size_t>(plan().unit), keys.span(), values.span());
}

}  // namespace kvspan
