// SPDX-License-Identifier: Apache-2.0
// A study for people: verdicts first, then the numbers.
#pragma once

#include <string>
#include <vector>

#include "cli/output/study_json.h"

namespace kvspan::cli {

std::string study_text(const StudyData& data, const std::vector<StudyVerdict>& verdicts,
                       const std::vector<StudyBreakEven>& lengths, const VerdictOptions& options);

// Units, their recipes and what they read, for --dry-run.
std::string plan_text(const std::vector<StudyUnit>& plan, const StudyOptions& options);

}  // namespace kvspan::cli
