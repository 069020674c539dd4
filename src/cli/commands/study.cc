// SPDX-License-Identifier: Apache-2.0
// kvspan study: the falsification suite of the low-rank hypothesis.
#include <chrono>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "base/cpu_level.h"
#include "base/fail.h"
#include "cli/command.h"
#include "cli/commands/eval_session.h"
#include "cli/commands/study_folder.h"
#include "cli/measured_text.h"
#include "cli/output/format.h"
#include "cli/output/progress_bar.h"
#include "cli/output/study_json.h"
#include "cli/output/study_table.h"
#include "cli/terminal/interrupt.h"
#include "cli/version.h"
#include "eval/perplexity/windows.h"
#include "eval/study/study_measure.h"

namespace kvspan::cli {
namespace {

struct StudyFlags {
  TaskFlags task;  // model, weights and seed
  std::string folder, file;
  std::int64_t context = 0, windows = 0;  // 0: the mode's
  bool quick = false, restart = false, dry_run = false;
};

// Everything a study needs while it runs.
struct Study {
  EvalSession session;
  StudyOptions options;
  std::vector<StudyUnit> plan;
  MeasuredText text;
  std::vector<std::vector<Token>> windows;
  VerdictOptions judging;
  Json settings;
  StudyData data;                    // of the units that are done
  std::vector<std::string> missing;  // names of those that are not
};

Result<StudyOptions> options_of(const StudyFlags& flags, std::int32_t model_context) {
  StudyOptions out = study_options(
      flags.quick, flags.context > 0
                       ? std::min(model_context, static_cast<std::int32_t>(flags.context))
                       : model_context);
  if (flags.context > model_context) {
    return fail(ErrorCode::kInvalidArgument, "--ctx: {} exceeds the model's context of {}",
                flags.context, model_context);
  }
  if (out.context < 128) {
    return fail(ErrorCode::kInvalidArgument,
                "a study takes windows of at least 128 tokens; the model's context is {}",
                model_context);
  }
  if (flags.windows > 0) out.windows = static_cast<std::int32_t>(flags.windows);
  return out;
}

Status read_windows(Study& study, const StudyFlags& flags) {
  KVSPAN_TRY(study.text, read_measured_text(flags.file));
  WindowOptions options;
  options.length = static_cast<std::size_t>(study.options.context);
  options.most = static_cast<std::size_t>(study.options.windows);
  auto windows = cut_windows(*study.session.tokenizer, study.text.text, options);
  if (!windows) {
    return fail(windows.error().code, "'{}': {}", study.text.path, windows.error().message);
  }
  study.windows = std::move(*windows);
  const auto found = static_cast<std::int32_t>(study.windows.size());
  if (found < study.options.windows) {
    fmt::print(stderr, "kvspan: the text has {} of {} windows\n", found, study.options.windows);
    study.options.windows = found;
  }
  return {};
}

Json settings_json(const Study& study, const StudyFlags& flags) {
  return {{"format", "kvspan-study-settings"},
          {"version", 1},
          {"fingerprint", study.session.engine->fingerprint()},
          {"text_sha256", checksum_of(study.text.text)},
          {"mode", study.options.quick ? "quick" : "full"},
          {"ctx", study.options.context},
          {"windows", study.options.windows},
          {"block", study.options.block},
          {"weights", flags.task.weights},
          {"seed", flags.task.seed},
          {"sink", study.options.sink},
          {"recent", study.options.recent},
          {"levels", study.options.levels},
          {"plan", checksum_of(study.plan)}};
}

VerdictOptions judging_of(const StudyOptions& options, std::uint64_t seed) {
  VerdictOptions out;
  out.bootstrap.seed = seed;
  out.context = options.context;
  // Well beyond the tokens that are never coded.
  out.length_from = options.context / 4;
  return out;
}

Json head_json(const Study& study, const StudyFlags& flags) {
  const ModelInfo& info = study.session.engine->info();
  Json settings = study.settings;
  settings.erase("format");
  settings.erase("version");
  settings["text"] = study.text.path;
  settings["confidence"] = study.judging.bootstrap.confidence;
  settings["resamples"] = study.judging.bootstrap.resamples;
  return {{"format", "kvspan-study"},
          {"version", 1},
          {"complete", study.missing.empty()},
          {"missing", study.missing},
          {"model",
           {{"name", info.name},
            {"path", study.session.path},
            {"fingerprint", study.settings["fingerprint"]},
            {"architecture", info.architecture},
            {"layers", info.layers},
            {"query_heads", info.query_heads},
            {"kv_heads", info.kv_heads},
            {"head_dim", info.key_dim},
            {"context", info.context},
            {"parameters_bytes", info.weight_bytes}}},
          {"settings", std::move(settings)},
          {"environment",
           {{"kvspan", version_number()},
            {"cpu_level", std::string(name_of(cpu_level()))},
            {"threads", flags.task.model.threads}}}};
}

// Writes study.json and study.txt; returns the tables.
Result<std::string> write_study(const Study& study, const StudyFlags& flags,
                                const StudyFolder& folder) {
  KVSPAN_TRY(const Json bench, folder.bench());
  const auto verdicts = judge(study.data, study.judging);
  const auto lengths = break_evens(study.data, bench);
  Json json = head_json(study, flags);
  add_results(study.data, verdicts, lengths, study.judging, json);
  std::string text = study_text(study.data, verdicts, lengths, study.judging);
  KVSPAN_CHECK_OK(folder.write(json, text));
  return text;
}

// The full cache is a row of every unit; a group keeps the first.
void add_unit(StudyData unit, StudyData& to) {
  for (StudyRow& row : unit.rows) {
    const bool again =
        row.family == "full" && row.label.empty() &&
        std::any_of(to.rows.begin(), to.rows.end(), [&](const StudyRow& other) {
          return other.group == row.group && other.family == "full" && other.label.empty();
        });
    if (!again) to.rows.push_back(std::move(row));
  }
  std::move(unit.samples.begin(), unit.samples.end(), std::back_inserter(to.samples));
}

// Codes are derived once for each recipe.
CacheSource kept_factories(const EvalSession& session) {
  auto known = std::make_shared<std::map<std::string, CacheFactory>>();
  return [&session, known](const std::string& recipe) -> Result<std::unique_ptr<KvCache>> {
    if (const auto found = known->find(recipe); found != known->end()) return found->second.make();
    KVSPAN_TRY(CacheFactory made,
               CacheFactory::create(session.engine->cache_shape(), recipe,
                                    session.calibration ? &*session.calibration : nullptr));
    return known->emplace(recipe, std::move(made)).first->second.make();
  };
}

// Measures what is missing. Returns early, without an error, after Ctrl-C.
Status measure(Study& study, const StudyFlags& flags, const StudyFolder& folder) {
  std::vector<StudyUnit> left;
  std::vector<std::size_t> tokens;  // of these
  std::set<std::string> read;
  std::size_t total = 0;
  bool fitting = false;
  for (const StudyUnit& unit : study.plan) {
    KVSPAN_TRY(auto done, folder.unit(unit.name));
    const std::size_t of_unit = tokens_of(unit, study.options, read);
    if (done) {
      add_unit(std::move(*done), study.data);
      continue;
    }
    fitting |= unit.recipes.front().level.has_value();
    total += of_unit;
    tokens.push_back(of_unit);
    study.missing.push_back(unit.name);
    left.push_back(unit);
  }
  if (fitting) total += fitting_tokens(study.options);
  if (left.size() < study.plan.size()) {
    fmt::print(stderr, "kvspan: {} of {} units are done already\n", study.plan.size() - left.size(),
               study.plan.size());
  }
  if (left.empty()) return {};
  fmt::print(stderr, "kvspan: {} tokens to read, in {} units\n", format_count(total), left.size());
  ProgressBar bar("measuring", "tokens", total);
  std::size_t before = 0;
  const auto progress = [&](std::size_t done) { bar.update(before + done); };
  const CacheSource source = kept_factories(study.session);
  std::optional<ByteProbe> probe;
  for (std::size_t u = 0; u < left.size(); ++u) {
    StudyUnit& unit = left[u];
    const auto start = std::chrono::steady_clock::now();
    if (unit.recipes.front().level && !probe) {
      auto recorded = ByteProbe::record(*study.session.engine, study.windows.front(),
                                        study.options.block, progress);
      if (!recorded && recorded.error().code == ErrorCode::kCancelled) return {};
      if (!recorded) return std::move(recorded).error();
      probe = std::move(*recorded);
      before += fitting_tokens(study.options);
    }
    // Codes of recipes that are only tried are not kept.
    if (probe) {
      KVSPAN_CHECK_OK(fit_levels(unit, *probe, study.options, study.session.caches()));
    }
    if (interrupted()) return {};
    KVSPAN_TRY(auto data, measure_unit(*study.session.engine, unit, study.options, study.windows,
                                       source, study.data.rows, progress));
    if (!data) return {};
    before += tokens[u];
    bar.update(before);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    KVSPAN_CHECK_OK(folder.keep(unit.name, *data, took.count(), study.options.context));
    add_unit(std::move(*data), study.data);
    std::erase(study.missing, unit.name);
    KVSPAN_CHECK_OK(write_study(study, flags, folder));
  }
  return {};
}

Result<int> run_study(StudyFlags flags) {
  if (flags.folder.empty() && !flags.dry_run) {
    return fail(ErrorCode::kInvalidArgument, "-o: a study needs a folder to keep its units in");
  }
  Study study;
  KVSPAN_TRY(study.session, EvalSession::open(flags.task));
  KVSPAN_TRY(study.options, options_of(flags, study.session.engine->info().context));
  KVSPAN_CHECK_OK(read_windows(study, flags));
  study.plan = study_plan(study.options);
  if (flags.dry_run) {
    fmt::print("{}", plan_text(study.plan, study.options));
    return 0;
  }
  study.judging = judging_of(study.options, static_cast<std::uint64_t>(flags.task.seed));
  study.settings = settings_json(study, flags);
  KVSPAN_TRY(const StudyFolder folder,
             StudyFolder::open(flags.folder, study.settings, flags.restart));
  for (const StudyUnit& unit : study.plan) {
    for (const PlannedRecipe& planned : unit.recipes) {
      if (!planned.recipe.empty()) flags.task.recipes.push_back(planned.recipe);
    }
  }
  KVSPAN_CHECK_OK(study.session.calibrate(flags.task));
  KVSPAN_CHECK_OK(measure(study, flags, folder));
  KVSPAN_TRY(const std::string text, write_study(study, flags, folder));
  fmt::print("{}", text);
  if (study.missing.empty()) return 0;
  fmt::print(stderr, "kvspan: {} of {} units are done; the same command goes on with the others\n",
             study.plan.size() - study.missing.size(), study.plan.size());
  return kInterruptedExit;
}

}  // namespace

Action setup_study(CLI::App& app) {
  auto flags = std::make_shared<StudyFlags>();
  add_model_flag(app, flags->task.model);
  add_thread_flags(app, flags->task.model);
  add_text(app, "-o,--out", flags->folder, "Folder of the study; one that is there is continued",
           "DIR");
  add_switch(app, "--quick", flags->quick, "One window of 768 tokens and fewer recipes: minutes");
  add_measured_text_flag(app, flags->file);
  add_integer(app, "-c,--ctx", flags->context, "Tokens of a window", 0, 1 << 24, "0: the mode's");
  add_integer(app, "--windows", flags->windows, "Windows to read at most", 0, 1 << 20,
              "0: the mode's");
  add_weights_flag(app, flags->task.weights);
  add_integer(app, "-s,--seed", flags->task.seed, "Seed of resampling", 0,
              std::numeric_limits<std::uint32_t>::max());
  add_switch(app, "--restart", flags->restart, "Forget what the folder holds and begin anew");
  add_switch(app, "--dry-run", flags->dry_run, "List units, recipes and tokens to read, and stop");
  set_footer(app,
             "Examples:\n"
             "  kvspan study -m smollm2 -o study --quick\n"
             "  kvspan study -m smollm2 -o study -f wiki.test.raw --weights f16 -t 16\n"
             "  kvspan study -m smollm2 --dry-run\n"
             "Every unit is written when it is done: after Ctrl-C the same command goes on.\n"
             "docs/reference/study.md says how verdicts are reached,\n"
             "docs/reference/formats/study.md what the folder holds.");
  return [flags] { return run_study(*flags); };
}

}  // namespace kvspan::cli
