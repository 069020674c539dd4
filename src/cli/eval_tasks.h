// SPDX-License-Identifier: Apache-2.0
// The tasks of `kvspan eval`, and what they share. Adding one is a file with its setup function and
// a line in eval.cc.
#pragma once

#include "cli/command.h"
#include "eval/perplexity.h"

namespace kvspan::cli {

Action setup_eval_ppl(CLI::App& app);

}  // namespace kvspan::cli
