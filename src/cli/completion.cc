// SPDX-License-Identifier: Apache-2.0
#include "cli/completion.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>

#include "base/fail.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "io/models.h"
#include "recipe/declaration.h"

namespace kvspan::cli {
namespace {

using Source = ValueKind::Source;

std::vector<const CLI::App*> commands_of(const CLI::App& program) {
  return program.get_subcommands(std::function<bool(const CLI::App*)>());
}

// The command's own options and those of its parts (`eval ppl`), each name once.
std::vector<const CLI::Option*> options_of(const CLI::App& command) {
  std::vector<const CLI::Option*> options;
  std::vector<std::string> seen;
  const auto add = [&](const CLI::App& app) {
    for (const CLI::Option* option : app.get_options()) {
      const std::string name = option->get_name();
      if (std::find(seen.begin(), seen.end(), name) != seen.end()) continue;
      seen.push_back(name);
      options.push_back(option);
    }
  };
  add(command);
  for (const CLI::App* part : commands_of(command)) add(*part);
  return options;
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size()) {
    text.replace(at, what.size(), with);
  }
  return text;
}

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

// `text` inside single quotes of a POSIX shell, and of fish.
std::string shell_quoted(const std::string& text) {
  return "'" + replaced(text, "'", "'\\''") + "'";
}

// Commands of bash that print what a value can be.
std::string bash_values(const ValueKind& kind) {
  switch (kind.source) {
    case Source::kFiles:
      return "compgen -f -- \"$word\"";
    case Source::kFolders:
      return "compgen -d -- \"$word\"";
    case Source::kModels:
      return fmt::format("compgen -W '{}' -- \"$word\"; compgen -f -- \"$word\"",
                         joined(kind.words));
    case Source::kWords:
      return fmt::format("compgen -W '{}' -- \"$word\"", joined(kind.words));
    default:
      return ":";
  }
}

// What zsh's _arguments calls an action.
std::string zsh_action(const ValueKind& kind) {
  switch (kind.source) {
    case Source::kFiles:
      return "_files";
    case Source::kFolders:
      return "_files -/";
    case Source::kModels:
      return "_kvspan_models";
    case Source::kWords:
      return "(" + joined(kind.words) + ")";
    default:
      return " ";
  }
}

std::string zsh_text(const std::string& text) {
  std::string out = replaced(text, "\\", "\\\\");
  for (const char* special : {"[", "]", ":"})
    out = replaced(out, special, std::string("\\") + special);
  return out;
}

std::string zsh_argument(const CLI::Option& option) {
  const ValueKind kind = value_kind(option);
  const std::string value =
      kind.source == Source::kNone ? "" : fmt::format(":value:{}", zsh_action(kind));
  if (!option.nonpositional()) return shell_quoted("1" + value);
  const std::vector<std::string> names = names_of(option);
  const std::string text = fmt::format("[{}]{}", zsh_text(option.get_description()), value);
  if (names.size() == 1) return shell_quoted(names.front() + text);
  return fmt::format("{}{{{}}}{}", shell_quoted("(" + joined(names) + ")"), fmt::join(names, ","),
                     shell_quoted(text));
}

std::string fish_argument(const std::string& command, const CLI::Option& option) {
  const ValueKind kind = value_kind(option);
  std::string line = "complete -c kvspan";
  line += command.empty() ? " -n __fish_use_subcommand"
                          : fmt::format(" -n '__fish_seen_subcommand_from {}'", command);
  for (const std::string& name : option.get_snames()) line += " -s " + name;
  for (const std::string& name : option.get_lnames()) line += " -l " + name;
  const bool files = kind.source == Source::kFiles || kind.source == Source::kModels;
  // -x: a value that is no file.
  if (kind.source != Source::kNone && option.nonpositional()) line += files ? " -r" : " -x";
  if (files) line += " -F";
  if (kind.source == Source::kFolders) line += " -a '(__fish_complete_directories)'";
  if (!kind.words.empty()) line += " -a " + shell_quoted(joined(kind.words));
  return line + " -d " + shell_quoted(option.get_description()) + "\n";
}

}  // namespace

ValueKind value_kind(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return {};
  const std::string type = option.get_type_name();
  if (type == "FILE") return {Source::kFiles, {}};
  if (type == "DIR") return {Source::kFolders, {}};
  if (type == "MODEL") {
    ValueKind kind{Source::kModels, {}};
    if (const auto models = list_models()) {
      for (const ModelFile& model : *models) kind.words.push_back(model.name);
    }
    return kind;
  }
  if (type == "METHOD" || type == "RECIPE") {
    ValueKind kind{Source::kWords, {}};
    for (const MethodDeclaration& method : all_methods()) kind.words.emplace_back(method.name);
    return kind;
  }
  if (type.find('|') != std::string::npos) return {Source::kWords, CLI::detail::split(type, '|')};
  return {Source::kText, {}};
}

std::string bash_completion(const CLI::App& program) {
  std::vector<std::string> top;
  for (const CLI::App* command : commands_of(program)) top.push_back(command->get_name());
  for (const CLI::Option* option : program.get_options()) {
    for (const std::string& name : names_of(*option)) top.push_back(name);
  }
  std::string values, words;
  for (const CLI::App* command : commands_of(program)) {
    std::vector<std::string> flags;
    for (const CLI::App* part : commands_of(*command)) flags.push_back(part->get_name());
    std::string arguments;
    for (const CLI::Option* option : options_of(*command)) {
      const ValueKind kind = value_kind(*option);
      if (!option->nonpositional()) {
        arguments += "; " + bash_values(kind);
        continue;
      }
      const std::vector<std::string> names = names_of(*option);
      flags.insert(flags.end(), names.begin(), names.end());
      if (kind.source == Source::kNone) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : names) patterns.push_back(command->get_name() + ":" + name);
      values += fmt::format("    {}) mapfile -t COMPREPLY < <({}); return ;;\n",
                            fmt::join(patterns, "|"), bash_values(kind));
    }
    words += fmt::format("    {}) mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$word\"{}) ;;\n",
                         command->get_name(), joined(flags), arguments);
  }
  return fmt::format(
      "# bash completion of kvspan, made by: kvspan completion bash\n"
      "_kvspan() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command= i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case ${{COMP_WORDS[i]}} in -*) ;; *) command=${{COMP_WORDS[i]}}; break ;; esac\n"
      "  done\n"
      "  case $command:$before in\n{}  esac\n"
      "  case $command in\n"
      "    '') mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$word\") ;;\n{}"
      "  esac\n"
      "}}\n"
      "complete -o filenames -F _kvspan kvspan\n",
      values, joined(top), words);
}

std::string zsh_completion(const CLI::App& program) {
  std::string list, cases, top, models;
  for (const CLI::Option* option : program.get_options()) top += " " + zsh_argument(*option);
  for (const CLI::App* command : commands_of(program)) {
    list += "    " +
            shell_quoted(command->get_name() + ":" + zsh_text(command->get_description())) + "\n";
    std::vector<std::string> parts;
    for (const CLI::App* part : commands_of(*command)) parts.push_back(part->get_name());
    std::string arguments;
    if (!parts.empty()) arguments += " " + shell_quoted("1:value:(" + joined(parts) + ")");
    for (const CLI::Option* option : options_of(*command)) {
      arguments += " \\\n        " + zsh_argument(*option);
      const ValueKind kind = value_kind(*option);
      if (kind.source == Source::kModels) models = joined(kind.words);
    }
    cases += fmt::format("    {}) _arguments -s{} ;;\n", command->get_name(), arguments);
  }
  return fmt::format(
      "#compdef kvspan\n"
      "# zsh completion of kvspan, made by: kvspan completion zsh\n"
      "_kvspan_models() {{ compadd -- {}; _files -g '*.gguf' }}\n"
      "_kvspan() {{\n"
      "  local -a commands=(\n{}  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    _arguments{}\n"
      "    return\n"
      "  fi\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $words[1] in\n{}  esac\n"
      "}}\n"
      "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _kvspan \"$@\"; else compdef _kvspan "
      "kvspan; fi\n",
      models, list, top, cases);
}

std::string fish_completion(const CLI::App& program) {
  std::string text =
      "# fish completion of kvspan, made by: kvspan completion fish\n"
      "complete -c kvspan -f\n";
  for (const CLI::Option* option : program.get_options()) text += fish_argument("", *option);
  for (const CLI::App* command : commands_of(program)) {
    text += fmt::format("complete -c kvspan -n __fish_use_subcommand -a {} -d {}\n",
                        command->get_name(), shell_quoted(command->get_description()));
    for (const CLI::App* part : commands_of(*command)) {
      text +=
          fmt::format("complete -c kvspan -n '__fish_seen_subcommand_from {}' -a {} -d {}\n",
                      command->get_name(), part->get_name(), shell_quoted(part->get_description()));
    }
    for (const CLI::Option* option : options_of(*command)) {
      text += fish_argument(command->get_name(), *option);
    }
  }
  return text;
}

Action setup_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  add_choice(app, "shell", *shell, "The shell", {"bash", "zsh", "fish"})->required();
  app.footer(
      "Examples:\n"
      "  source <(kvspan completion bash)\n"
      "  kvspan completion zsh > ~/.zfunc/_kvspan\n"
      "  kvspan completion fish > ~/.config/fish/completions/kvspan.fish\n");
  return [shell, &app]() -> Result<int> {
    const CLI::App& program = *app.get_parent();
    fmt::print("{}", *shell == "bash"  ? bash_completion(program)
                     : *shell == "zsh" ? zsh_completion(program)
                                       : fish_completion(program));
    return 0;
  };
}

}  // namespace kvspan::cli
