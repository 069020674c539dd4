// SPDX-License-Identifier: Apache-2.0
// kvspan serve: the flags that are kvspan's are taken out, all others are llama-server's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands/serve_store.h"
#include "kvspan/result.h"

namespace kvspan::cli {

struct ServeFlags {
  std::string model;    // as typed; empty where the server gets its model another way (-hf, ...)
  std::string recipe;   // empty: by what is known of the model
  std::string budget;   // empty: none
  std::string wait;     // empty: the default
  StoreFlags store;
  bool fixed_threads = false;
  bool help = false;
  std::int64_t answer_tokens = -1;   // of -n, which stays in `others`
  std::vector<std::string> others;  // for the server, in their order
};

// Fails where a flag of kvspan's has no value.
Result<ServeFlags> split_serve_flags(const std::vector<std::string>& arguments);

// `help` is what --help prints of kvspan's flags, before the server's.
Result<int> run_serve(const std::vector<std::string>& arguments, const std::string& help);

}  // namespace kvspan::cli
