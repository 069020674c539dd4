// SPDX-License-Identifier: Apache-2.0
#include "cli/program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "base/spelling.h"
#include "cli/command.h"
#include "cli/commands/serve.h"
#include "cli/output/json_output.h"
#include "cli/output/standard_output.h"
#include "cli/output/voice.h"
#include "cli/short_flags.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/terminal.h"
#include "cli/version.h"
#include "llama/ggml_log.h"

namespace kvspan::cli {
namespace {

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : all_commands()) names.emplace_back(command.name);
  return names;
}

std::vector<std::string> flag_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (std::string& name : short_flags_of(app)) names.push_back(std::move(name));
  return names;
}

// One line for a flag that a command does not have.
std::string no_such_flag(const CLI::App& command, const std::string& name,
                         const std::string& flag) {
  return fmt::format("{} has no flag '{}'{} (see kvspan {} --help)", name, flag,
                     did_you_mean(flag, flag_names(command)), name);
}

// Of the command and its parts.
void add_voice_flags_to_all(CLI::App& command) {
  add_voice_flags(command);
  for (CLI::App* part : command.get_subcommands(std::function<bool(CLI::App*)>())) {
    add_voice_flags_to_all(*part);
  }
}

struct Chosen {
  const CLI::App* app;
  std::string name;  // "eval ppl"
};
// The innermost subcommand that was parsed; there is one.
Chosen chosen_command(const CLI::App& app) {
  Chosen chosen{app.get_subcommands().front(), app.get_subcommands().front()->get_name()};
  while (!chosen.app->get_subcommands().empty()) {
    chosen.app = chosen.app->get_subcommands().front();
    chosen.name += " " + chosen.app->get_name();
  }
  return chosen;
}

// What CLI11 could not parse, as one line.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const auto parsed = app.get_subcommands();
  if (parsed.empty()) {
    const std::vector<std::string> rest = app.remaining();
    if (rest.empty()) {
      return fmt::format("no command given; there are: {} (see kvspan --help)",
                         fmt::join(command_names(), ", "));
    }
    if (rest.front().starts_with('-')) {
      return fmt::format("unknown flag '{}'{} (see kvspan --help)", rest.front(),
                         did_you_mean(rest.front(), flag_names(app)));
    }
    const std::string hint = did_you_mean(rest.front(), command_names());
    return fmt::format(
        "no command is called '{}'{}", rest.front(),
        hint.empty() ? fmt::format("; there are: {}", fmt::join(command_names(), ", ")) : hint);
  }
  const auto [deepest, name] = chosen_command(app);
  const CLI::App& command = *deepest;
  const std::string see = fmt::format(" (see kvspan {} --help)", name);
  std::vector<std::string> parts;
  for (const CLI::App* sub : command.get_subcommands(std::function<bool(const CLI::App*)>())) {
    parts.push_back(sub->get_name());
  }
  if (!parts.empty()) {
    const std::vector<std::string> rest = app.remaining(true);
    if (rest.empty()) {
      return fmt::format("{} takes one of: {}{}", name, fmt::join(parts, ", "), see);
    }
    return fmt::format("{} takes one of {}, not '{}'{}{}", name, fmt::join(parts, ", "),
                       rest.front(), did_you_mean(rest.front(), parts), see);
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::vector<std::string> rest = app.remaining(true);
    const std::string first = rest.empty() ? "" : rest.front();
    if (!first.starts_with('-')) return fmt::format("'{}' is not expected here{}", first, see);
    const std::string flag = first.substr(0, first.find('='));
    return no_such_flag(command, name, flag);
  }
  return error.what() + see;
}

Result<int> run_chosen(const CLI::App& app, const std::vector<Action>& actions) {
  const CLI::App* chosen = app.get_subcommands().front();
  const auto commands = all_commands();
  const auto found = std::find_if(commands.begin(), commands.end(),
                                  [&](const Command& c) { return c.name == chosen->get_name(); });
  return actions[static_cast<std::size_t>(found - commands.begin())]();
}

// Results that could not be written were not given.
int finish(int code) {
  if (const Status status = output_status(); !status) {
    print_error(status.error().message);
    return code == 0 ? 1 : code;
  }
  return code == kInterruptedExit && terminated() ? kTerminatedExit : code;
}

int finish_serve(const CLI::App& app, const std::vector<std::string>& arguments) {
  const Result<int> code = run_serve(arguments, app.get_subcommand("serve")->help("kvspan"));
  if (code) return finish(*code);
  print_error(code.error().message);
  return exit_code_of(code.error().code);
}

}  // namespace

void print_error(std::string_view message) {
  // Texts from elsewhere (a script, a library) may span lines.
  std::string line(message);
  std::replace(line.begin(), line.end(), '\n', ' ');
  const Terminal terminal = describe_terminal(2);
  std::fflush(stdout);
  fmt::print(stderr, "{} {}\n", styled("kvspan:", Style::kRed, terminal), line);
}

int exit_code_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kCancelled:
      return terminated() ? kTerminatedExit : kInterruptedExit;
    case ErrorCode::kIo:
      return 1;
    default:
      return 2;
  }
}

int run_program(int argc, const char* const* argv) {
  CLI::App app("kvspan: run language models with their KV cache in the span of learned directions",
               "kvspan");
  app.require_subcommand(1, 1);
  app.set_version_flag("--version", version_text, "Print the version and what it was built with");
  std::vector<Action> actions;
  for (const Command& command : all_commands()) {
    CLI::App* sub = app.add_subcommand(std::string(command.name), std::string(command.summary));
    actions.push_back(command.setup(*sub));
    add_voice_flags_to_all(*sub);
  }
  app.footer(
      "Examples:\n"
      "  kvspan pull smollm2\n"
      "  kvspan run -m smollm2 -p \"Why is the sky blue?\"\n"
      "  kvspan chat --help\n");
  // Its flags are llama-server's, which only that knows.
  if (argc > 1 && std::string_view(argv[1]) == "serve") {
    return finish_serve(app, {argv + 2, argv + argc});
  }
  try {
    std::vector<std::string> arguments = with_long_flags(app, {argv + 1, argv + argc});
    if (const std::string flag = unknown_letters(app, arguments); !flag.empty()) {
      const auto commands = app.get_subcommands(
          [&](const CLI::App* command) { return command->get_name() == arguments.front(); });
      print_error(commands.empty() ? no_such_flag(app, "kvspan", flag)
                                   : no_such_flag(*commands.front(), arguments.front(), flag));
      return 2;
    }
    std::reverse(arguments.begin(), arguments.end());  // as the parser takes them
    app.parse(std::move(arguments));
  } catch (const CLI::Success& success) {  // --help, --version
    return finish(app.exit(success));
  } catch (const CLI::ParseError& error) {
    print_error(explain(app, error));
    return 2;
  }
  if (voice() == Voice::kVerbose) {
    echo_ggml([](const char* text) { std::fputs(text, stderr); });
  }
  set_command_line(chosen_command(app).name, {argv + 1, argv + argc});
  const Result<int> code = run_chosen(app, actions);
  if (code) return finish(*code);
  print_error(code.error().message);
  return exit_code_of(code.error().code);
}

}  // namespace kvspan::cli
