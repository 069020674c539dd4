// SPDX-License-Identifier: Apache-2.0
// bands: waiting rows are coded in tiles of 16 tokens with the codes that were designed before the
// sequence began (spec section 3). Escapes, the tokens whose coding error stands far out, also stay
// exact in the list: so many of them that their share of the tokens so far is at most `escape`.
//
// Where the ends are held at 8 bits, rows are full rank for a tile or two only; then they wait, and
// the sink stays, as int8 segments of the list:
//     [sink][escaped][waiting as int8][full rank]
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "method/coding_plan.h"
#include "method/policy.h"

namespace kvspan {

struct BandsPolicyOptions {
  std::int32_t recent = 128;
  double escape = 0.005;
  std::int32_t sink = 0;  // held at 8 bits; else the group keeps it
  // How ends are held at 8 bits; null: at full rank. The plan's codes are shared.
  std::shared_ptr<const CodingPlan> ends;
};

class BandsPolicy final : public Policy {
 public:
  explicit BandsPolicy(const BandsPolicyOptions& options) : options_(options) {}
  Status settle(Group& group) override;
  void clear() override;
  std::unique_ptr<Policy> clone() const override { return std::make_unique<BandsPolicy>(*this); }
  Status save(const StateWriter& to) const override;
  Status load(const Group& group, const StateReader& from) override;

 private:
  Status settle_narrow(Group& group);
  // The tile of rows that starts at index `at` of the list leaves it.
  Status code_tile(Group& group, const RowBlock& rows, std::size_t first, std::int32_t at);

  BandsPolicyOptions options_;
  std::int64_t coded_ = 0, escaped_ = 0;
  double usual_ = 0.0;  // running mean of the tokens' coding errors, escapes left out
};

}  // namespace kvspan
