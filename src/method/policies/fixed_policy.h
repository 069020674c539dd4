// SPDX-License-Identifier: Apache-2.0
// static and quant: codes that were made before the sequence began and never change.
// Sources: documents 000 s4 s10, 002 (SubSpace-G), 003 (StaticPCA, Eigen-N); llama.cpp and KIVI for
// quantization without a learned basis.
#pragma once

#include "method/policies/unit_policy.h"

namespace kvspan {

class FixedPolicy final : public UnitPolicy {
 public:
  using UnitPolicy::UnitPolicy;
  std::unique_ptr<Policy> clone() const override { return std::make_unique<FixedPolicy>(*this); }

 protected:
  Status settle_unit(Group& group, const RowBlock& rows, std::size_t first) override;
};

}  // namespace kvspan
