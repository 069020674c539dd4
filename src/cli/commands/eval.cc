// SPDX-License-Identifier: Apache-2.0
// kvspan eval: what a recipe costs in quality. Each task is a subcommand with its own file.
#include <CLI/CLI.hpp>
#include <array>

#include "base/fail.h"
#include "cli/command.h"
#include "cli/commands/eval_tasks.h"
#include "eval/tasks/text_tasks.h"

namespace kvspan::cli {
namespace {

constexpr std::array kTasks{
    Command{"ppl", "Perplexity and divergence from the full cache", setup_eval_ppl},
    Command{"jsonl", "Prompts and targets of your own", setup_eval_jsonl},
    Command{"passkey", "Five digits hidden in a long text", setup_eval_hidden},
    Command{"kvlookup", "One of many pairs of a JSON object", setup_eval_hidden},
    Command{"ruler", "The thirteen long-context tasks of RULER", setup_eval_ruler},
    Command{"longbench", "Rows of LongBench, from a file", setup_eval_longbench},
};

std::vector<Command> all_tasks() {
  std::vector<Command> tasks(kTasks.begin(), kTasks.end());
  for (const TextTaskInfo& task : all_text_tasks()) {
    tasks.push_back({task.name, task.summary, setup_eval_text});
  }
  return tasks;
}

}  // namespace

Action setup_eval(CLI::App& app) {
  app.require_subcommand(1, 1);
  app.footer(
      "Examples:\n"
      "  kvspan eval ppl -m smollm2 --windows 4 --cache quant:bits=4\n"
      "  kvspan eval piqa -m smollm2 --limit 200 --cache quant:bits=4 --cache streaming\n"
      "  kvspan eval ruler -m smollm2 --tasks niah_single_1,vt --length 2048 --cache streaming\n"
      "  kvspan eval jsonl -m smollm2 --data rows.jsonl --cache quant:bits=4\n"
      "  kvspan eval ppl --help\n");
  auto actions = std::make_shared<std::vector<std::pair<const CLI::App*, Action>>>();
  for (const Command& task : all_tasks()) {
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
