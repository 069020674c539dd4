// SPDX-License-Identifier: Apache-2.0
#include "cli/short_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

namespace kvspan::cli {
namespace {

struct ShortFlag {
  const char* typed;
  const char* meant;
};
constexpr std::array kShortFlags{
    ShortFlag{"-hf", "--hf-repo"},          ShortFlag{"-hfr", "--hf-repo"},
    ShortFlag{"-hff", "--hf-file"},         ShortFlag{"-ngl", "--gpu-layers"},
    ShortFlag{"-ctk", "--cache-type-k"},    ShortFlag{"-ctv", "--cache-type-v"},
    ShortFlag{"-fa", "--flash-attn"},       ShortFlag{"-sys", "--system-prompt"},
    ShortFlag{"-cnv", "--conversation"},    ShortFlag{"-no-cnv", "--no-conversation"},
    ShortFlag{"-md", "--model-draft"},      ShortFlag{"-jf", "--json-schema-file"},
};

// The option of `command` with this name, which is as typed ("-n", "--temp"); null: none.
const CLI::Option* option_of(const CLI::App& command, const std::string& name) {
  return name.starts_with('-') ? command.get_option_no_throw(name) : nullptr;
}

const CLI::App* part_of(const CLI::App& app, const std::string& name) {
  for (const CLI::App* part : app.get_subcommands(std::function<bool(const CLI::App*)>())) {
    if (part->get_name() == name) return part;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> with_long_flags(const CLI::App& program,
                                         std::vector<std::string> arguments) {
  const CLI::App* command = &program;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string& argument = arguments[i];
    if (argument == "--") break;
    if (const CLI::App* part = part_of(*command, argument)) {
      command = part;
      continue;
    }
    const std::string name = argument.substr(0, argument.find('='));
    for (const ShortFlag& flag : kShortFlags) {
      if (name != flag.typed || option_of(*command, flag.meant) == nullptr) continue;
      argument = flag.meant + argument.substr(name.size());
    }
    const CLI::Option* option = option_of(*command, argument);
    if (option != nullptr && option->get_items_expected_min() > 0) ++i;  // its value
  }
  return arguments;
}

std::vector<std::string> short_flags_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const ShortFlag& flag : kShortFlags) {
    if (option_of(command, flag.meant) != nullptr) names.emplace_back(flag.typed);
  }
  return names;
}

}  // namespace kvspan::cli
