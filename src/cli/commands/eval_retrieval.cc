// SPDX-License-Identifier: Apache-2.0
// kvspan eval passkey, kvlookup and ruler: things hidden in long prompts.
#include <optional>

#include "base/fail.h"
#include "cli/commands/eval_tasks.h"
#include "cli/output/progress_bar.h"
#include "cli/output/task_report.h"
#include "eval/retrieval/random_text.h"
#include "eval/retrieval/retrieval_measurement.h"
#include "eval/retrieval/ruler.h"

namespace kvspan::cli {
namespace {

constexpr std::int32_t kUsualLength = 4096;

struct RetrievalFlags : TaskFlags {
  std::int64_t length = 0;  // 0: kUsualLength, or the model's context where that is shorter
  std::vector<std::string> tasks;
  std::string hotpotqa;
  bool chat = false;
};

Result<RetrievalData> read_data(const RetrievalFlags& flags) {
  RetrievalData data;
  const auto read = [](const std::string& name) -> Result<std::string> {
    KVSPAN_TRY(const std::string path, task_file_path(name));
    return read_task_file(path);
  };
  KVSPAN_TRY(const std::string adjectives, read("adjectives.txt"));
  KVSPAN_TRY(const std::string nouns, read("nouns.txt"));
  KVSPAN_TRY(const std::string verbs, read("verbs.txt"));
  KVSPAN_TRY(data.haystack, read("haystack.txt"));
  data.adjectives = lines_of(adjectives);
  data.nouns = lines_of(nouns);
  data.verbs = lines_of(verbs);
  KVSPAN_TRY(const std::string squad_path, task_file_path("squad.jsonl"));
  KVSPAN_TRY(const std::string squad, read_task_file(squad_path));
  KVSPAN_TRY(data.squad, parse_squad_rows(squad, squad_path));
  if (!flags.hotpotqa.empty()) {
    KVSPAN_TRY(const std::string text, read_task_file(flags.hotpotqa));
    KVSPAN_TRY(data.hotpotqa, parse_hotpotqa(text, flags.hotpotqa));
  }
  if (data.adjectives.empty() || data.nouns.empty() || data.verbs.empty()) {
    return fail(ErrorCode::kCorruptData, "a list of words beside '{}' is empty", squad_path);
  }
  return data;
}

// All tasks of RULER that there is data for, where none is named.
Result<std::vector<RetrievalTask>> ruler_tasks(const RetrievalFlags& flags,
                                               const RetrievalData& data) {
  std::vector<std::string> names = flags.tasks;
  if (names.empty()) {
    for (const RulerTaskInfo& task : all_ruler_tasks()) {
      if (task.name != "qa_2" || !data.hotpotqa.empty()) names.emplace_back(task.name);
    }
  }
  std::vector<RetrievalTask> out;
  for (const std::string& name : names) {
    if (name == "qa_2" && data.hotpotqa.empty()) {
      return fail(ErrorCode::kNotFound,
                  "--tasks: qa_2 asks HotpotQA's questions, which do not come with kvspan; "
                  "--hotpotqa takes its file (hotpot_dev_distractor_v1.json)");
    }
    auto task = ruler_task(name, static_cast<std::size_t>(flags.length), data);
    if (!task) return fail(task.error().code, "--tasks: {}", task.error().message);
    out.push_back(std::move(*task));
  }
  return out;
}

PromptForm form_of(const RetrievalFlags& flags) {
  return flags.chat ? PromptForm::kChat : PromptForm::kPlain;
}

Result<std::vector<RetrievalSample>> samples_of(const RetrievalTask& task,
                                                const RetrievalFlags& flags,
                                                const EvalSession& session) {
  SampleOptions options;
  options.length = static_cast<std::size_t>(flags.length);
  options.count = static_cast<std::size_t>(flags.limit);
  options.seed = static_cast<std::uint64_t>(flags.seed);
  auto samples =
      make_samples(task, options, [&](const RetrievalSample& sample) -> Result<std::size_t> {
        KVSPAN_TRY(const auto tokens, encode_sample(*session.tokenizer, sample, form_of(flags)));
        return tokens.size();
      });
  if (!samples) return fail(samples.error().code, "--length: {}", samples.error().message);
  return samples;
}

Result<TaskResult> measure(const RetrievalTask& task, const std::vector<RetrievalSample>& samples,
                           const RetrievalFlags& flags, const EvalSession& session,
                           const Json& before) {
  const std::vector<Metric> metrics{{"score", Metric::Kind::kShare}};
  KVSPAN_TRY(const auto earlier, earlier_rows(before, task.name, metrics));
  std::optional<ProgressBar> bar;
  auto report = measure_rows(
      *session.engine, samples.size(), "full", flags.others("full"), session.caches(),
      retrieval_scorer(*session.engine, *session.tokenizer, task, samples, form_of(flags)),
      [&](std::size_t done, std::size_t total) {
        if (!bar) bar.emplace("asking " + task.name, "prompts", total);
        bar->update(done);
      },
      earlier);
  if (!report) return std::move(report).error();
  std::vector<std::vector<std::string>> answers;
  for (const RetrievalSample& sample : samples) answers.push_back(sample.answers);
  Json texts = samples_json(answers, *report);
  return TaskResult{task.name, metrics, samples.size(), std::move(*report), std::move(texts)};
}

Result<int> eval_retrieval(const std::string& name, RetrievalFlags flags) {
  KVSPAN_TRY(const RetrievalData data, read_data(flags));
  KVSPAN_TRY(EvalSession session, EvalSession::open(flags));
  if (flags.length == 0) flags.length = std::min(kUsualLength, session.engine->info().context);
  std::vector<RetrievalTask> tasks;
  if (name == "ruler") {
    KVSPAN_TRY(tasks, ruler_tasks(flags, data));
  } else {
    tasks.push_back(name == "passkey" ? passkey_task(data) : key_value_lookup_task());
  }
  if (flags.length > session.engine->info().context) {
    return fail(ErrorCode::kInvalidArgument, "--length: {} exceeds the model's context of {}",
                flags.length, session.engine->info().context);
  }
  Json about{
      {"task", name}, {"length", flags.length}, {"limit", flags.limit}, {"chat", flags.chat}};
  Json& identity = about["identity"] = session.identity(name, flags);
  identity["length"] = flags.length;
  identity["chat"] = flags.chat;
  identity["hotpotqa"] = flags.hotpotqa;
  KVSPAN_TRY(const Json before, earlier_run(flags.resume, flags.json, identity));
  // All prompts first: a length that is too short for one task is told before hours of another.
  std::vector<std::vector<RetrievalSample>> samples;
  for (const RetrievalTask& task : tasks) {
    KVSPAN_TRY(auto made, samples_of(task, flags, session));
    samples.push_back(std::move(made));
  }
  KVSPAN_CHECK_OK(session.calibrate(flags));
  std::vector<TaskResult> results;
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    KVSPAN_TRY(auto result, measure(tasks[t], samples[t], flags, session, before));
    results.push_back(std::move(result));
    if (results.back().report.cancelled) break;
  }
  return report_tasks(flags, session, std::move(about), results);
}

Action setup(CLI::App& app, const std::shared_ptr<RetrievalFlags>& flags) {
  add_task_flags(app, *flags);
  flags->limit = 10;
  add_integer(app, "--limit", flags->limit, "Prompts of each task", 1, 1 << 20);
  add_integer(app, "--length", flags->length, "Tokens of a prompt and its answer", 0, 1 << 24,
              fmt::format("0: {}, or the model's context where that is shorter", kUsualLength));
  add_switch(app, "--chat", flags->chat, "Ask in the model's chat template");
  return [flags, name = command_name(app)] { return eval_retrieval(name, *flags); };
}

}  // namespace

Action setup_eval_hidden(CLI::App& app) {
  const bool passkey = command_name(app) == "passkey";
  set_footer(
      app,
      fmt::format(
          "Examples:\n"
          "  kvspan eval {} -m smollm2 --length 2048 --limit 20 --cache quant:bits=4\n"
          "{}",
          command_name(app),
          passkey ? "Five digits are hidden at a random place of a book's text; an answer that has "
                    "them counts."
                  : "A JSON object of UUIDs, of which one value is asked for by its key."));
  return setup(app, std::make_shared<RetrievalFlags>());
}

Action setup_eval_ruler(CLI::App& app) {
  auto flags = std::make_shared<RetrievalFlags>();
  Action action = setup(app, flags);
  add_list(app, "--tasks", flags->tasks, "Tasks, parted by commas (default: all with data)");
  add_text(app, "--hotpotqa", flags->hotpotqa, "HotpotQA's JSON file, which qa_2 asks from",
           "FILE");
  std::string footer =
      "Examples:\n"
      "  kvspan eval ruler -m smollm2 --tasks niah_single_1,vt --length 2048 --cache streaming\n"
      "  kvspan eval ruler -m smollm2 --length 8192 --limit 50 --json ruler.json\n"
      "Tasks:\n";
  for (const RulerTaskInfo& task : all_ruler_tasks()) {
    footer += fmt::format("  {:<16} {}\n", task.name, task.summary);
  }
  set_footer(
      app,
      footer + "Prompts, needles and scores are those of RULER; docs/reference/eval.md has them.");
  return action;
}

}  // namespace kvspan::cli
