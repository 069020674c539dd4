// SPDX-License-Identifier: Apache-2.0
// oja: the basis starts from calibration and turns towards the text by Oja's rule.
//     reading   blocks of several units: the rows that received most attention from the block's
//               last queries make one step (eta_prefill), then the rows are coded
//     decoding  each unit of rows makes one step (eta) and is coded
// Coefficients stored under older bases: stale=segment keeps each basis with its rows, rotate and
// reuse as in method/policies/recode.h.
// Source: OjaKV (Zhu et al.), section 5, Algorithm 1, Table 5. Which rows make a step depends on
// how many came in one call, as in the source; so do the segments.
#pragma once

#include <cstdint>
#include <memory>

#include "method/coding_plan.h"
#include "method/policies/policy.h"
#include "method/policies/recode.h"
#include "subspace/oja.h"

namespace kvspan {

enum class Stale : std::uint8_t { kSegment, kRotate, kReuse };

struct OjaPolicyOptions {
  double eta_prefill = 0.10;
  double eta = 0.05;
  double top = 0.05;  // share of a block's rows that make its step
  OjaNorm norm = OjaNorm::kBatch;
  Stale stale = Stale::kSegment;
};

class OjaPolicy final : public Policy {
 public:
  OjaPolicy(std::shared_ptr<const CodingPlan> plan, const OjaPolicyOptions& options,
            std::shared_ptr<Ledger> ledger);
  OjaPolicy(const OjaPolicy& other);

  Status settle(Group& group) override;
  std::unique_ptr<Policy> clone() const override { return std::make_unique<OjaPolicy>(*this); }
  std::size_t sketch_bytes() const noexcept override;
  Status save(const StateWriter& to) const override;
  Status load(Group& group, const StateReader& from) override;

 private:
  // The trackers after a step, and the codes that they then give.
  struct Stepped {
    std::unique_ptr<OjaTracker> keys, values;
    NewCodes codes;
  };
  Result<Stepped> step(const Group& group, const RowBlock& rows,
                       std::span<const std::size_t> chosen, double eta) const;
  // What becomes of the segments that are coded already.
  Status recode(Group& group, const NewCodes& codes) const;

  std::shared_ptr<const CodingPlan> plan_;
  OjaPolicyOptions options_;
  std::shared_ptr<Ledger> ledger_;
  std::unique_ptr<OjaTracker> keys_, values_;
};

}  // namespace kvspan
