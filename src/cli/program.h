// SPDX-License-Identifier: Apache-2.0
// The program without its main: parses, runs a subcommand, reports.
// Exit codes: 0 done; 2 something the user can mend, told in one line "kvspan: ..." on standard
// error; 1 an unexpected failure, told likewise; 130 interrupted, 143 by SIGTERM.
#pragma once

#include "kvspan/result.h"

namespace kvspan::cli {

int run_program(int argc, const char* const* argv);

// One line on standard error.
void print_error(std::string_view message);
int exit_code_of(ErrorCode code) noexcept;

}  // namespace kvspan::cli
