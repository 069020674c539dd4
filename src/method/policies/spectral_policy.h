// SPDX-License-Identifier: Apache-2.0
// spectral: one batch SVD per block of rows; C = U_k S_k are the coefficients and V_k' the basis,
// which the block keeps. Rows of values may be weighed by the attention they received.
// Source: Holographic Spectral Compression.
#pragma once

#include <vector>

#include "method/policies/unit_policy.h"

namespace kvspan {

class SpectralPolicy final : public UnitPolicy {
 public:
  using UnitPolicy::UnitPolicy;
  std::unique_ptr<Policy> clone() const override { return std::make_unique<SpectralPolicy>(*this); }

 protected:
  Status settle_unit(Group& group, const RowBlock& rows, std::size_t first) override;
};

}  // namespace kvspan
