// SPDX-License-Identifier: Apache-2.0
// Completion scripts, generated from the program's own subcommands and flags.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvspan::cli {

// What can be typed after a flag, or in place of a positional argument; read from its type name
// (cli/flags.h).
struct ValueKind {
  enum class Source { kNone, kText, kFiles, kFolders, kModels, kWords };
  Source source = Source::kNone;   // kNone: a flag without a value
  std::vector<std::string> words;  // for kWords, and the names of models for kModels
};
ValueKind value_kind(const CLI::Option& option);

std::string bash_completion(const CLI::App& program);
std::string zsh_completion(const CLI::App& program);
std::string fish_completion(const CLI::App& program);

}  // namespace kvspan::cli
