// SPDX-License-Identifier: Apache-2.0
// rotate: one basis for the whole text, from a Frequent Directions sketch, refreshed after every
// unit; stored coefficients are mapped to the new basis in place.
// Source: Low-Rank KV Cache Subspaces, variant 2.
#pragma once

#include "method/policies/recode.h"
#include "method/policies/unit_policy.h"
#include "subspace/frequent_directions.h"

namespace kvspan {

class RotatePolicy final : public UnitPolicy {
 public:
  // sketch_rows: l of the sketches, as a multiple of the rank.
  RotatePolicy(std::shared_ptr<const CodingPlan> plan, std::int32_t sketch_per_rank,
               std::shared_ptr<Ledger> ledger);
  RotatePolicy(const RotatePolicy& other);

  std::unique_ptr<Policy> clone() const override { return std::make_unique<RotatePolicy>(*this); }
  std::size_t sketch_bytes() const noexcept override;
  Status save(const StateWriter& to) const override;
  Status load(Group& group, const StateReader& from) override;

 protected:
  Status settle_unit(Group& group, const RowBlock& rows, std::size_t first) override;

 private:
  std::shared_ptr<Ledger> ledger_;
  std::unique_ptr<FrequentDirections> keys_, values_;
};

}  // namespace kvspan
