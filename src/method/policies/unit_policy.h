// SPDX-License-Identifier: Apache-2.0
// Policies that code a fixed number of rows at a time, once `recent` rows wait behind them.
#pragma once

#include "method/coding_plan.h"
#include "method/policies/policy.h"

namespace kvspan {

class UnitPolicy : public Policy {
 public:
  explicit UnitPolicy(std::shared_ptr<const CodingPlan> plan) : plan_(std::move(plan)) {}
  Status settle(Group& group) final;
  // For those that learn nothing.
  Status save(const StateWriter& to) const override;
  Status load(Group& group, const StateReader& from) override;

 protected:
  // Codes rows first .. first + plan().unit - 1 of the block, the oldest that wait.
  virtual Status settle_unit(Group& group, const RowBlock& rows, std::size_t first) = 0;
  const CodingPlan& plan() const noexcept { return *plan_; }

 private:
  std::shared_ptr<const CodingPlan> plan_;
};

// One code or none, as spans want them.
class OneCode {
 public:
  OneCode() = default;
  explicit OneCode(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::span<const std::shared_ptr<const Code>> span() const {
    return code_ ? std::span(&code_, 1) : std::span<const std::shared_ptr<const Code>>();
  }
  const std::shared_ptr<const Code>& get() const noexcept { return code_; }

 private:
  std::shared_ptr<const Code> code_;
};

}  // namespace kvspan
