// SPDX-License-Identifier: Apache-2.0
// The tasks of `kvspan eval`. Adding one is its setup function and a line in eval.cc; what they
// share is in eval_session.h and task_report.h.
#pragma once

#include "cli/command.h"

namespace kvspan::cli {

Action setup_eval_ppl(CLI::App& app);
// The task of text_tasks.h that has the subcommand's name.
Action setup_eval_text(CLI::App& app);
Action setup_eval_jsonl(CLI::App& app);
// passkey or kvlookup, by the subcommand's name.
Action setup_eval_hidden(CLI::App& app);
Action setup_eval_ruler(CLI::App& app);
Action setup_eval_longbench(CLI::App& app);

}  // namespace kvspan::cli
