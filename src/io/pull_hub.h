// SPDX-License-Identifier: Apache-2.0
// Fetching models of Hugging Face with python3 (scripts/pull_hub.py, carried inside the program).
#pragma once

#include <string>

#include "kvspan/result.h"

namespace kvspan {

struct HubModel {
  std::string name;      // USER/REPO or USER/REPO:QUANT
  std::string file;      // a file of the repository; "": the one of the quantization
  std::string endpoint;  // address of the server
  std::string folder;    // of the cache, in huggingface_hub's layout
  std::string progress;  // "bar", "plain", "none"; "": a bar where there is a terminal
};

// The path of the fetched model; of a split one, its first part. What was fetched when a connection
// breaks or Ctrl-C comes is kept, and the next call goes on from there. Every file is checked
// against its hash.
Result<std::string> pull_hub_model(const HubModel& model);

}  // namespace kvspan
