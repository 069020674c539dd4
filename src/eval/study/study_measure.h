// SPDX-License-Identifier: Apache-2.0
// One unit of a study on a model.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "eval/equal_bytes/byte_probe.h"
#include "eval/study/study_plan.h"
#include "eval/study/study_rows.h"

namespace kvspan {

// Family and ranks of a recipe for heads of that size; empty and nothing where it does not parse.
void describe(StudyRow& row, std::int32_t head_dim);

// Gives the unit's levels their recipes. One that cannot come near its level stays empty, with the
// reason in `label`. Fails only when cancelled.
Status fit_levels(StudyUnit& unit, ByteProbe& probe, const StudyOptions& options,
                  const CacheSource& source);

// Rows of the unit in the plan's order, the full cache first in every group. A recipe that fails,
// or that cannot be made, is a row with its reason; one that `known` holds is not measured again.
// Nothing where the engine's flag has cancelled it: half a unit is none. `progress` gets tokens
// read.
Result<std::optional<StudyData>> measure_unit(Engine& engine, const StudyUnit& unit,
                                              const StudyOptions& options,
                                              std::span<const std::vector<Token>> windows,
                                              const CacheSource& source,
                                              std::span<const StudyRow> known,
                                              const std::function<void(std::size_t)>& progress);

}  // namespace kvspan
