// SPDX-License-Identifier: Apache-2.0
#include "cli/short_flags.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cctype>

namespace kvspan::cli {
namespace {

struct ShortFlag {
  const char* typed;
  const char* meant;
};
constexpr std::array kShortFlags{
    ShortFlag{"-hf", "--hf-repo"},       ShortFlag{"-hfr", "--hf-repo"},
    ShortFlag{"-hff", "--hf-file"},      ShortFlag{"-ngl", "--gpu-layers"},
    ShortFlag{"-ctk", "--cache-type-k"}, ShortFlag{"-ctv", "--cache-type-v"},
    ShortFlag{"-fa", "--flash-attn"},    ShortFlag{"-sys", "--system-prompt"},
    ShortFlag{"-cnv", "--conversation"}, ShortFlag{"-no-cnv", "--no-conversation"},
    ShortFlag{"-md", "--model-draft"},   ShortFlag{"-jf", "--json-schema-file"},
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

bool is_letter(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0;
}

// Calls `use` with the command that an argument belongs to and the argument, for all that are not
// the value of another, nor a command.
template <class Use>
void for_each_flag(const CLI::App& program, std::vector<std::string>& arguments, Use use) {
  const CLI::App* command = &program;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string& argument = arguments[i];
    if (argument == "--") return;
    if (const CLI::App* part = part_of(*command, argument)) {
      command = part;
      continue;
    }
    use(*command, argument);
    const CLI::Option* option = option_of(*command, argument);
    if (option != nullptr && option->get_items_expected_min() > 0) ++i;  // its value
  }
}

}  // namespace

std::vector<std::string> with_long_flags(const CLI::App& program,
                                         std::vector<std::string> arguments) {
  for_each_flag(program, arguments, [](const CLI::App& command, std::string& argument) {
    const std::string name = argument.substr(0, argument.find('='));
    for (const ShortFlag& flag : kShortFlags) {
      if (name != flag.typed || option_of(command, flag.meant) == nullptr) continue;
      argument = flag.meant + argument.substr(name.size());
      return;
    }
  });
  return arguments;
}

std::string unknown_letters(const CLI::App& program, const std::vector<std::string>& arguments) {
  std::string unknown;
  auto copy = arguments;
  for_each_flag(program, copy, [&](const CLI::App& command, std::string& argument) {
    const bool letters = argument.size() > 2 && argument[0] == '-' && is_letter(argument[1]) &&
                         is_letter(argument[2]);
    if (!letters || !unknown.empty()) return;
    const CLI::Option* option = option_of(command, argument.substr(0, 2));
    if (option == nullptr) return;  // the parser tells
    const bool takes_value = option->get_items_expected_min() > 0;
    if (!takes_value || option->get_type_name() == "N") unknown = argument;
  });
  return unknown;
}

std::vector<std::string> short_flags_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const ShortFlag& flag : kShortFlags) {
    if (option_of(command, flag.meant) != nullptr) names.emplace_back(flag.typed);
  }
  return names;
}

}  // namespace kvspan::cli
