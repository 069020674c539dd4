// SPDX-License-Identifier: Apache-2.0
// An inspection as JSON and as tables (docs/reference/inspect.md).
#pragma once

#include <string>
#include <vector>

#include "analysis/inspection.h"
#include "cli/output/json_output.h"

namespace kvspan::cli {

// "sides" and "layers".
void add_inspection(const Inspection& inspection, Json& to);

// Ranks, effective dimensions and sensitivities by layer and head; gains by layer; texts against
// each other, the course of the first window and residuals, as means over layers and heads.
std::string rank_table(const Inspection& inspection);
std::string sensitivity_table(const Inspection& inspection);
std::string residual_table(const Inspection& inspection);
std::string gain_table(const Inspection& inspection);
std::string text_table(const Inspection& inspection, const std::vector<std::string>& names);
std::string time_table(const Inspection& inspection);

}  // namespace kvspan::cli
