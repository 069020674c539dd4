// SPDX-License-Identifier: Apache-2.0
// An inspection as JSON and as tables (docs/inspect.md).
#pragma once

#include <string>
#include <vector>

#include "analysis/inspection.h"
#include "cli/json_output.h"

namespace kvspan::cli {

// "sides" and "layers".
void add_inspection(const Inspection& inspection, Json& to);

// Ranks and entropies by layer and head; gains by layer; texts against each other and the course of
// the first window, as means over layers and heads.
std::string rank_table(const Inspection& inspection);
std::string gain_table(const Inspection& inspection);
std::string text_table(const Inspection& inspection, const std::vector<std::string>& names);
std::string time_table(const Inspection& inspection);

}  // namespace kvspan::cli
