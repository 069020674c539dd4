// SPDX-License-Identifier: Apache-2.0
// kvspan eval longbench: rows of LongBench, which the user brings.
#include <algorithm>
#include <optional>

#include "base/fail.h"
#include "cli/commands/eval_tasks.h"
#include "cli/output/progress_bar.h"
#include "cli/output/task_report.h"
#include "eval/tasks/longbench.h"

namespace kvspan::cli {
namespace {

struct LongBenchFlags : TaskFlags {
  std::string file;
  std::int64_t length = 0;  // 0: the model's context
  bool chat = false;
};

// The rows of one dataset, in order.
struct Dataset {
  const LongBenchTask* task = nullptr;
  std::vector<LongBenchRow> rows;
};

Result<std::vector<Dataset>> datasets_of(std::vector<LongBenchRow> rows, const std::string& file,
                                         std::size_t limit) {
  std::vector<Dataset> out;
  for (LongBenchRow& row : rows) {
    const auto task = longbench_task(row.dataset);
    if (!task) return fail(task.error().code, "'{}': {}", file, task.error().message);
    auto found = std::find_if(out.begin(), out.end(),
                              [&](const Dataset& known) { return known.task == *task; });
    if (found == out.end()) {
      out.push_back({*task, {}});
      found = out.end() - 1;
    }
    if (limit == 0 || found->rows.size() < limit) found->rows.push_back(std::move(row));
  }
  return out;
}

Result<TaskResult> measure(const Dataset& dataset, const LongBenchFlags& flags,
                           const EvalSession& session, const Json& before) {
  const std::string name(dataset.task->name);
  const std::vector<Metric> metrics{{"score", Metric::Kind::kShare}};
  KVSPAN_TRY(const auto earlier, earlier_rows(before, name, metrics));
  std::optional<ProgressBar> bar;
  auto report = measure_rows(
      *session.engine, dataset.rows.size(), "full", flags.others("full"), session.caches(),
      longbench_scorer(*session.engine, *session.tokenizer, *dataset.task, dataset.rows,
                       static_cast<std::int32_t>(flags.length),
                       flags.chat ? PromptForm::kChat : PromptForm::kPlain),
      [&](std::size_t done, std::size_t total) {
        if (!bar) bar.emplace("asking " + name, "prompts", total);
        bar->update(done);
      },
      earlier);
  if (!report) return std::move(report).error();
  std::vector<std::vector<std::string>> answers;
  for (const LongBenchRow& row : dataset.rows) answers.push_back(row.answers);
  Json samples = samples_json(answers, *report);
  return TaskResult{name, metrics, dataset.rows.size(), std::move(*report), std::move(samples)};
}

Result<int> eval_longbench(LongBenchFlags flags) {
  KVSPAN_TRY(const std::string text, read_task_file(flags.file));
  KVSPAN_TRY(auto rows, parse_longbench_rows(text, flags.file));
  KVSPAN_TRY(const auto datasets,
             datasets_of(std::move(rows), flags.file, static_cast<std::size_t>(flags.limit)));
  KVSPAN_TRY(EvalSession session, EvalSession::open(flags));
  const std::int32_t context = session.engine->info().context;
  if (flags.length == 0) flags.length = context;
  std::int32_t most = 0;
  for (const Dataset& dataset : datasets) most = std::max(most, dataset.task->answer_tokens);
  if (flags.length > context || flags.length < 2 * most) {
    return fail(
        ErrorCode::kInvalidArgument,
        "--length: {} is not from {} (twice the longest answer) to {} (the model's context)",
        flags.length, 2 * most, context);
  }
  Json about{{"task", "longbench"},
             {"data", flags.file},
             {"length", flags.length},
             {"limit", flags.limit},
             {"chat", flags.chat}};
  Json& identity = about["identity"] = session.identity("longbench", flags);
  identity["data_sha256"] = checksum_of(text);
  identity["length"] = flags.length;
  identity["chat"] = flags.chat;
  KVSPAN_TRY(const Json before, earlier_run(flags.resume, flags.json, identity));
  KVSPAN_CHECK_OK(session.calibrate(flags));
  std::vector<TaskResult> results;
  for (const Dataset& dataset : datasets) {
    KVSPAN_TRY(auto result, measure(dataset, flags, session, before));
    results.push_back(std::move(result));
    if (results.back().report.cancelled) break;
  }
  return report_tasks(flags, session, std::move(about), results);
}

}  // namespace

Action setup_eval_longbench(CLI::App& app) {
  auto flags = std::make_shared<LongBenchFlags>();
  add_required(app, "FILE", flags->file, "Rows of LongBench (.jsonl), of one dataset or several",
               "FILE");
  add_task_flags(app, *flags);
  add_integer(app, "--limit", flags->limit, "Rows of each dataset", 0, 1 << 30, "0: all");
  add_integer(app, "--length", flags->length, "Tokens of a prompt and its answer", 0, 1 << 24,
              "0: the model's context");
  add_switch(app, "--chat", flags->chat, "Ask in the model's chat template, where LongBench does");
  std::string footer =
      "Examples:\n"
      "  kvspan eval longbench hotpotqa.jsonl -m smollm2 --limit 50 --cache bands\n"
      "  kvspan eval longbench all.jsonl -m smollm2 --cache quant --json lb.json --resume\n"
      "Datasets:";
  for (const LongBenchTask& task : all_longbench_tasks()) footer += fmt::format(" {}", task.name);
  set_footer(
      app,
      footer +
          "\nPrompts, scores and truncation are LongBench's; docs/reference/eval.md has them.");
  return [flags] { return eval_longbench(*flags); };
}

}  // namespace kvspan::cli
