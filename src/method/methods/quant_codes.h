// SPDX-License-Identifier: Apache-2.0
// The codes of plain quantization: no learned directions, a rotation at most. One for all heads and
// layers of a shape.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "method/coding_plan.h"
#include "recipe/recipe.h"

namespace kvspan {

class QuantCodes {
 public:
  // `method` is quant, and outlives this.
  QuantCodes(const RecipePart& method, std::shared_ptr<Ledger> shared)
      : method_(method), shared_(std::move(shared)) {}

  // One side of `heads` heads together, with its code.
  Result<SidePlan> side(std::int32_t heads, std::int32_t dim, bool keys);

 private:
  const RecipePart& method_;
  std::shared_ptr<Ledger> shared_;
  std::map<std::tuple<std::int32_t, std::int32_t, bool>, std::shared_ptr<const Code>> codes_;
};

}  // namespace kvspan
