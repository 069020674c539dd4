// SPDX-License-Identifier: Apache-2.0
// Running another program and waiting for it.
#pragma once

#include <string>
#include <vector>

#include "kvspan/result.h"

namespace kvspan {

struct ProcessEnd {
  int exit_code = 0;   // of the program; 128 + n when signal n ended it
  std::string output;  // what it wrote to standard output
};

// Runs argv[0], found on PATH, with standard input and error inherited. While it runs, Ctrl-C is
// the child's to handle: the caller ignores SIGINT and SIGQUIT, as system() does. Fails with
// kNotFound when there is no such program.
Result<ProcessEnd> run_process(const std::vector<std::string>& argv);

}  // namespace kvspan
