// SPDX-License-Identifier: Apache-2.0
// kvspan eval: what a recipe costs in quality. Each task is a subcommand with its own file.
#include <CLI/CLI.hpp>
#include <array>

#include "base/fail.h"
#include "cli/command.h"
#include "cli/eval_tasks.h"

namespace kvspan::cli {
namespace {

constexpr std::array kTasks{
    Command{"ppl", "Perplexity and divergence from the full cache", setup_eval_ppl},
};

}  // namespace

Action setup_eval(CLI::App& app) {
  app.require_subcommand(1, 1);
  app.footer(
      "Examples:\n"
      "  kvspan eval ppl -m smollm2 --windows 4 --cache quant:bits=4\n"
      "  kvspan eval ppl --help\n");
  auto actions = std::make_shared<std::vector<std::pair<const CLI::App*, Action>>>();
  for (const Command& task : kTasks) {
    CLI::App* sub = app.add_subcommand(std::string(task.name), std::string(task.summary));
    actions->emplace_back(sub, task.setup(*sub));
  }
  return [&app, actions]() -> Result<int> {
    for (const auto& [sub, action] : *actions) {
      if (app.got_subcommand(sub)) return action();
    }
    return fail(ErrorCode::kInvalidArgument, "eval: no task given");
  };
}

}  // namespace kvspan::cli
