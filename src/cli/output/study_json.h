// SPDX-License-Identifier: Apache-2.0
// A study as JSON: docs/reference/formats/study.md.
#pragma once

#include <string>
#include <vector>

#include "cli/output/json_output.h"
#include "eval/study/study_plan.h"
#include "eval/study/study_verdicts.h"

namespace kvspan::cli {

// "rows" and "samples", without intervals.
Json unit_json(const StudyData& data, std::int32_t context);
// Throws as the JSON library does on what unit_json does not write.
StudyData unit_from(const Json& json);

// A length from which a recipe holds fewer bytes, or decodes faster, than another.
struct StudyBreakEven {
  std::string recipe, group, against;
  std::string_view by;  // "bytes" or "decode"
  std::optional<double> tokens;
  bool extrapolated = false;
};
// By bytes from the rows; by speed from `bench`, what `kvspan bench --json` wrote, or null.
std::vector<StudyBreakEven> break_evens(const StudyData& data, const Json& bench);

// "rows", "samples", "verdicts", "break_even" and "groups" of study.json.
void add_results(const StudyData& data, const std::vector<StudyVerdict>& verdicts,
                 const std::vector<StudyBreakEven>& lengths, const VerdictOptions& options,
                 Json& to);

}  // namespace kvspan::cli
