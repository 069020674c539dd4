// SPDX-License-Identifier: Apache-2.0
// The subcommands of the program. Adding one is a file with its setup function and a line in
// command.cc.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "kvspan/result.h"

namespace CLI {
class App;
}

namespace kvspan::cli {

// What runs once the flags are parsed; returns the exit code.
using Action = std::function<Result<int>()>;

struct Command {
  std::string_view name;
  std::string_view summary;
  // Adds flags, help and examples to `app`, the subcommand of that name. Flags are kept in what the
  // action owns.
  Action (*setup)(CLI::App& app);
};

std::span<const Command> all_commands() noexcept;

Action setup_run(CLI::App& app);
Action setup_chat(CLI::App& app);
Action setup_demo(CLI::App& app);
Action setup_tokenize(CLI::App& app);
Action setup_info(CLI::App& app);
Action setup_list(CLI::App& app);
Action setup_rm(CLI::App& app);
Action setup_pull(CLI::App& app);
Action setup_import(CLI::App& app);
Action setup_methods(CLI::App& app);
Action setup_bench(CLI::App& app);
Action setup_verify(CLI::App& app);
Action setup_calibrate(CLI::App& app);
Action setup_cache(CLI::App& app);
Action setup_eval(CLI::App& app);
Action setup_inspect(CLI::App& app);
Action setup_report(CLI::App& app);
Action setup_study(CLI::App& app);
Action setup_serve(CLI::App& app);
Action setup_completion(CLI::App& app);

}  // namespace kvspan::cli
