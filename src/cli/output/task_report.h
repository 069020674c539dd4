// SPDX-License-Identifier: Apache-2.0
// What tasks of `kvspan eval` found, as a table and as JSON.
#pragma once

#include <string>
#include <vector>

#include "cli/commands/eval_session.h"
#include "cli/output/json_output.h"
#include "eval/study/row_measurement.h"

namespace kvspan::cli {

struct TaskResult {
  std::string task;
  std::vector<Metric> metrics;
  std::size_t asked = 0;  // rows that were to be scored
  RowsReport report;
  Json samples;  // null, or one object for each row
};

// For each row what was expected and what every recipe wrote.
Json samples_json(const std::vector<std::vector<std::string>>& answers, const RowsReport& report);

// What an earlier run found of a task, from the JSON that it wrote (eval_session.h); nothing of
// null. Fails where that is damaged.
Result<std::vector<RecipeOutcome>> earlier_rows(const Json& before, const std::string& task,
                                                const std::vector<Metric>& metrics);

// One line for each recipe and metric; a first column names the task where there are several.
std::string table_of(const std::vector<TaskResult>& results, const BootstrapOptions& options);

// Writes JSON and prints the table; `about` begins the JSON. Returns the exit code: 1 where a
// recipe failed, 130 after Ctrl-C.
Result<int> report_tasks(const TaskFlags& flags, const EvalSession& session, Json about,
                         const std::vector<TaskResult>& results);

}  // namespace kvspan::cli
