// SPDX-License-Identifier: Apache-2.0
// Frequent Directions sketches as policies use them: one per side, its code on demand.
#pragma once

#include <memory>
#include <optional>

#include "method/coding_plan.h"
#include "subspace/frequent_directions.h"

namespace kvspan {

// l = per_rank r rows, at most D. Null for a side that stays full rank. Ranks chosen by energy
// sketch all D directions.
std::unique_ptr<FrequentDirections> make_sketch(const std::optional<SidePlan>& side,
                                                std::int32_t per_rank,
                                                const std::shared_ptr<Ledger>& ledger);
std::unique_ptr<FrequentDirections> clone_sketch(const FrequentDirections* sketch,
                                                 const std::shared_ptr<Ledger>& ledger);
// The code of the leading directions.
Result<std::shared_ptr<const Code>> sketch_code(const FrequentDirections& sketch,
                                                const SidePlan& side,
                                                const std::shared_ptr<Ledger>& ledger);

}  // namespace kvspan
