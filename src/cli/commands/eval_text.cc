// SPDX-License-Identifier: Apache-2.0
// kvspan eval piqa, lambada, ... and jsonl: log-likelihoods of given texts.
#include <optional>

#include "base/fail.h"
#include "cli/commands/eval_tasks.h"
#include "cli/output/progress_bar.h"
#include "cli/output/task_report.h"
#include "eval/tasks/text_tasks.h"

namespace kvspan::cli {
namespace {

struct RowFlags : TaskFlags {
  std::string data;
};

const TextTaskInfo* find_task(const std::string& name) {
  for (const TextTaskInfo& task : all_text_tasks()) {
    if (task.name == name) return &task;
  }
  return nullptr;
}

// `about` gets the rows' path and checksum.
Result<TextTask> read_task(const std::string& name, const RowFlags& flags,
                           const EvalSession& session, Json& about) {
  std::string path = flags.data;
  if (path.empty()) {
    KVSPAN_TRY(path, task_file_path(name + ".jsonl"));
  }
  KVSPAN_TRY(const std::string text, read_task_file(path));
  about["data"] = path;
  about["identity"] = session.identity(name, flags);
  about["identity"]["data_sha256"] = checksum_of(text);
  const auto limit = static_cast<std::size_t>(flags.limit);
  if (const TextTaskInfo* info = find_task(name)) {
    return make_text_task(*info, *session.engine, *session.tokenizer, text, path, limit);
  }
  KVSPAN_TRY(auto rows, parse_target_rows(text, path));
  if (limit > 0 && rows.size() > limit) rows.resize(limit);
  return target_task(*session.engine, *session.tokenizer, rows, path);
}

Result<int> eval_text(const std::string& name, const RowFlags& flags) {
  KVSPAN_TRY(EvalSession session, EvalSession::open(flags));
  Json about{{"task", name}};
  KVSPAN_TRY(const TextTask task, read_task(name, flags, session, about));
  KVSPAN_TRY(const Json before, earlier_run(flags.resume, flags.json, about["identity"]));
  KVSPAN_TRY(const auto earlier, earlier_rows(before, name, task.metrics));
  KVSPAN_CHECK_OK(session.calibrate(flags));
  std::optional<ProgressBar> bar;
  auto report = measure_rows(
      *session.engine, task.rows, "full", flags.others("full"), session.caches(), task.score,
      [&](std::size_t done, std::size_t total) {
        if (!bar) bar.emplace("scoring " + name, "rows", total);
        bar->update(done);
      },
      earlier);
  bar.reset();
  if (!report) return std::move(report).error();
  if (task.truncated > 0) {
    fmt::print(stderr,
               "kvspan: {} of {} rows exceed the model's context of {}; they lost their "
               "beginning\n",
               task.truncated, task.rows, session.engine->info().context);
  }
  about["limit"] = flags.limit;
  about["truncated"] = task.truncated;
  std::vector<TaskResult> results(1);
  results.front() = {name, task.metrics, task.rows, std::move(*report), {}};
  return report_tasks(flags, session, std::move(about), results);
}

using AddFlag = void (*)(CLI::App&, const std::string&, std::string&, const std::string&,
                         const std::string&);

Action setup(CLI::App& app, AddFlag add_data, const std::string& description) {
  auto flags = std::make_shared<RowFlags>();
  add_task_flags(app, *flags);
  add_integer(app, "--limit", flags->limit, "Rows to score, the first of the file", 0, 1 << 30,
              "0: all");
  add_data(app, "--data", flags->data, description, "FILE");
  return [flags, name = command_name(app)] { return eval_text(name, *flags); };
}

}  // namespace

Action setup_eval_text(CLI::App& app) {
  Action action =
      setup(app, add_text, "Rows in the same layout (default: those that come with kvspan)");
  set_footer(
      app,
      fmt::format(
          "Examples:\n"
          "  kvspan eval {0} -m smollm2 --limit 200 --cache quant:bits=4 --cache window:size=64\n"
          "  kvspan eval {0} -m gemma3 --cache streaming --json {0}.json\n"
          "Scored as lm-evaluation-harness does; docs/reference/eval.md has prompts, metrics and "
          "data.",
          command_name(app)));
  return action;
}

Action setup_eval_jsonl(CLI::App& app) {
  Action action = setup(app, add_required, "Lines of {\"prompt\": TEXT, \"target\": TEXT}");
  set_footer(
      app,
      "Examples:\n"
      "  kvspan eval jsonl -m smollm2 --data rows.jsonl --cache quant:bits=4\n"
      "  kvspan eval jsonl -m smollm2 --data rows.jsonl --cache streaming --json out.json\n"
      "nll is of the target's tokens, token_acc the share of them that are the most likely ones,\n"
      "exact the share of rows where all are.");
  return action;
}

}  // namespace kvspan::cli
