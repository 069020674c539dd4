// SPDX-License-Identifier: Apache-2.0
#include "method/policies/rotate_policy.h"

#include <algorithm>

#include "base/expect.h"
#include "base/fail.h"
#include "method/domain_rows.h"
#include "method/sketches.h"
#include "method/state_bytes.h"

namespace kvspan {

RotatePolicy::RotatePolicy(std::shared_ptr<const CodingPlan> plan, std::int32_t sketch_per_rank,
                           std::shared_ptr<Ledger> ledger)
    : UnitPolicy(std::move(plan)),
      ledger_(std::move(ledger)),
      keys_(make_sketch(this->plan().keys, sketch_per_rank, ledger_)),
      values_(make_sketch(this->plan().values, sketch_per_rank, ledger_)) {}

RotatePolicy::RotatePolicy(const RotatePolicy& other)
    : UnitPolicy(other),
      ledger_(other.ledger_),
      keys_(clone_sketch(other.keys_.get(), ledger_)),
      values_(clone_sketch(other.values_.get(), ledger_)) {}

std::size_t RotatePolicy::sketch_bytes() const noexcept {
  return (keys_ ? keys_->bytes() : 0) + (values_ ? values_->bytes() : 0);
}

Status RotatePolicy::save(const StateWriter& to) const {
  put_tracker(keys_.get(), to.out);
  put_tracker(values_.get(), to.out);
  return {};
}

Status RotatePolicy::load(Group& group, const StateReader& from) {
  KVSPAN_CHECK_OK(check_segments(group, {.plan = &plan(), .orthonormal = true}, from.in));
  KVSPAN_TRY(keys_, get_sketch(keys_.get(), from));
  KVSPAN_TRY(values_, get_sketch(values_.get(), from));
  return {};
}

Status RotatePolicy::settle_unit(Group& group, const RowBlock& rows, std::size_t first) {
  const auto n = static_cast<std::size_t>(plan().unit);
  // Learnt by copies, so that a unit that fails has left nothing behind.
  auto key_sketch = clone_sketch(keys_.get(), ledger_);
  auto value_sketch = clone_sketch(values_.get(), ledger_);
  const auto refresh =
      [&](FrequentDirections* sketch,
          const std::optional<SidePlan>& side) -> Result<std::shared_ptr<const Code>> {
    if (sketch == nullptr) return std::shared_ptr<const Code>();
    KVSPAN_CHECK_OK(sketch->update(domain_rows(rows, first, n, 0, side->style).view()));
    return sketch_code(*sketch, *side, group.list().ledger());
  };
  KVSPAN_TRY(std::shared_ptr<const Code> keys, refresh(key_sketch.get(), plan().keys));
  KVSPAN_TRY(std::shared_ptr<const Code> values, refresh(value_sketch.get(), plan().values));
  Status coded = group.attempt([&](Group& copy) -> Status {
    KVSPAN_CHECK_OK(rotate_coefficients(copy, {keys, values}));
    return copy.code(rows, first, n, OneCode(keys).span(), OneCode(values).span());
  });
  KVSPAN_CHECK_OK(std::move(coded));
  keys_ = std::move(key_sketch);
  values_ = std::move(value_sketch);
  return {};
}

}  // namespace kvspan
