// SPDX-License-Identifier: Apache-2.0
// kvspan eval ppl: perplexity of recipes, and their divergence from the full cache.
#include <algorithm>
#include <optional>

#include "base/cpu_level.h"
#include "base/fail.h"
#include "cli/calibration.h"
#include "cli/commands/eval_session.h"
#include "cli/commands/eval_tasks.h"
#include "cli/data_folder.h"
#include "cli/equal_bytes.h"
#include "cli/flags.h"
#include "cli/measured_text.h"
#include "cli/model_path.h"
#include "cli/output/format.h"
#include "cli/output/json_output.h"
#include "cli/output/perplexity_json.h"
#include "cli/output/progress_bar.h"
#include "cli/output/table.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/text_input.h"
#include "eval/engine_caches.h"
#include "eval/perplexity/windows.h"
#include "io/atomic_file.h"
#include "llama/file_fingerprint.h"
#include "recipe/recipe.h"

namespace kvspan::cli {
namespace {

constexpr int kBuckets = 8;  // of --long
constexpr double kNoDivergence = 1e-6;

constexpr std::int32_t kUsualContext = 4096;

struct PplFlags {
  ModelFlags model;
  std::vector<std::string> recipes;
  std::string file;
  std::string json;
  std::int64_t context = 0;  // 0: kUsualContext, or the model's where that is shorter
  std::int64_t windows = 4;
  std::int64_t block = 64;
  std::string weights = "file";
  std::string peer;
  std::vector<std::string> peer_kv{"f16"};
  bool by_position = false;
  bool resume = false;
  EqualBytesFlags equal;

  // Those to measure, before they are fitted: all that can be, where none is named.
  std::vector<std::string> asked() const {
    return equal.given() && recipes.empty() ? sizable_methods() : recipes;
  }
};

std::string table_of(const PerplexityReport& report) {
  using enum Table::Align;
  Table table({{"recipe"},
               {"bits", kRight},
               {"KV", kRight},
               {"ratio", kRight},
               {"ppl", kRight},
               {"dppl", kRight},
               {"KL", kRight},
               {"KL p99", kRight},
               {"same argmax", kRight},
               {""}});
  for (const PerplexityRow& row : report.rows) {
    const PerplexityFigures& f = row.figures;
    const bool idle = &row != &report.rows.front() && row.nothing_compressed();
    // Without anything compressed a recipe that predicts as full does, but for the order of sums, has
    // shown nothing.
    const bool shown = f.positions > 0 && !(idle && f.kl < kNoDivergence);
    const auto cell = [&](std::string text) { return shown ? std::move(text) : "-"; };
    table.add_row({row.recipe, fmt::format("{:.2f}", row.bits()), format_bytes(row.kv_bytes),
                   format_ratio(row.kv_bytes_full, row.kv_bytes),
                   cell(fmt::format("{:.4f}", f.ppl)), cell(fmt::format("{:+.2f} %", f.dppl_pct)),
                   cell(fmt::format("{:.5f}", f.kl)), cell(fmt::format("{:.4f}", f.kl_p99)),
                   cell(fmt::format("{:.2f} %", 100.0 * f.top1)),
                   row.failed ? "failed: " + *row.failed
                   : idle     ? "nothing compressed"
                              : ""});
  }
  return table.text();
}

std::string position_table(const PerplexityReport& report, std::size_t length) {
  using enum Table::Align;
  Table table({{"positions", kRight},
               {"recipe"},
               {"ppl", kRight},
               {"dppl", kRight},
               {"KL", kRight},
               {"same argmax", kRight}});
  for (std::size_t b = 0; b < kBuckets; ++b) {
    for (const PerplexityRow& row : report.rows) {
      const PerplexityFigures& f = row.by_position[b];
      if (f.positions == 0) continue;
      table.add_row({fmt::format("{}-{}", length * b / kBuckets, length * (b + 1) / kBuckets - 1),
                     row.recipe, fmt::format("{:.4f}", f.ppl), fmt::format("{:+.2f} %", f.dppl_pct),
                     fmt::format("{:.5f}", f.kl), fmt::format("{:.2f} %", 100.0 * f.top1)});
    }
  }
  return table.text();
}

// `identity` gets the text's checksum.
Result<std::vector<std::vector<Token>>> read_windows(const PplFlags& flags, const Engine& engine,
                                                     Json& identity) {
  if (flags.context > engine.info().context) {
    return fail(ErrorCode::kInvalidArgument, "--ctx: {} exceeds the model's context of {}",
                flags.context, engine.info().context);
  }
  KVSPAN_TRY(const MeasuredText measured, read_measured_text(flags.file));
  identity["text_sha256"] = checksum_of(measured.text);
  KVSPAN_TRY(const auto tokenizer, Tokenizer::open(engine.info().path));
  WindowOptions options;
  options.length = static_cast<std::size_t>(flags.context);
  options.most = static_cast<std::size_t>(flags.windows);
  auto windows = cut_windows(*tokenizer, measured.text, options);
  if (!windows) {
    return fail(windows.error().code, "'{}': {} (--ctx)", measured.path, windows.error().message);
  }
  return windows;
}

// Rows of an earlier run that got to the end; those of a stopped one are measured anew.
Result<std::vector<PerplexityRow>> finished_rows(const Json& before) {
  std::vector<PerplexityRow> out;
  if (before.is_null()) return out;
  try {
    if (before.at("cancelled").get<bool>()) return out;
    for (const Json& row : before.at("rows")) {
      if (!row.contains("failed")) out.push_back(perplexity_row_from(row));
    }
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kCorruptData, "--resume: the file of --json is damaged: {}",
                error.what());
  }
  return out;
}

const PerplexityRow* find_row(const std::vector<PerplexityRow>& rows, const std::string& recipe) {
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [&](const PerplexityRow& row) { return row.recipe == recipe; });
  return found == rows.end() ? nullptr : &*found;
}

// Rows of both in the order asked for.
void merge(const std::vector<PerplexityRow>& earlier, const std::vector<std::string>& order,
           PerplexityReport& report) {
  std::vector<PerplexityRow> rows;
  for (const std::string& recipe : order) {
    const PerplexityRow* row = find_row(report.rows, recipe);
    if (row == nullptr) row = find_row(earlier, recipe);
    if (row != nullptr) rows.push_back(*row);
  }
  report.rows = std::move(rows);
}

std::vector<std::string> recipes_of(const EqualBytes& equal) {
  std::vector<std::string> out;
  for (const EqualBytes::Fitted& fitted : equal.fitted) out.push_back(fitted.recipe);
  return out;
}

// Those that do not fit are left out, and said: what others took to fit must not be lost.
Result<EqualBytes> fitted_recipes(const PplFlags& flags, Engine& engine,
                                  std::span<const Token> window, const Calibration* calibration,
                                  const Json& before) {
  const CacheSource quiet = [&](const std::string& recipe) -> Result<std::unique_ptr<KvCache>> {
    KVSPAN_TRY(const CacheFactory caches, engine_caches(engine, recipe, calibration));
    return caches.make();
  };
  KVSPAN_TRY(EqualBytes equal,
             fit_equal_bytes(flags.equal, engine, window, static_cast<std::int32_t>(flags.block),
                             flags.asked(), quiet,
                             before.is_object() ? before.value("equal_bytes", Json()) : Json()));
  for (const EqualBytes::Refused& refused : equal.refused) {
    if (equal.fitted.empty()) return fail(ErrorCode::kInvalidArgument, "{}", refused.why);
    fmt::print(stderr, "kvspan: left out: {}\n", refused.why);
  }
  return equal;
}

// What is left to measure, and the order in which rows are shown.
struct PplPlan {
  std::vector<std::string> recipes, order;
  bool known = false;  // nothing is left
};
// The reference is a row of its own anyway.
Result<PplPlan> plan_ppl(const std::vector<std::string>& asked,
                          const std::vector<std::string>& peer_kv,
                          const std::vector<PerplexityRow>& earlier, PerplexityOptions& options) {
  PplPlan plan;
  plan.order = {options.reference};
  for (const std::string& recipe : asked) {
    KVSPAN_TRY(const Recipe parsed, Recipe::parse(recipe));
    if (parsed.text() == options.reference) continue;
    plan.order.push_back(parsed.text());
    if (find_row(earlier, parsed.text()) == nullptr) plan.recipes.push_back(recipe);
  }
  for (const std::string& type : peer_kv) {
    plan.order.push_back("llama.cpp " + type);
    if (find_row(earlier, plan.order.back()) == nullptr) options.peer_kv.push_back(type);
  }
  plan.known = plan.recipes.empty() && options.peer_kv.empty() &&
               find_row(earlier, options.reference) != nullptr;
  return plan;
}

Result<PerplexityReport> measure_plan(Engine& engine, const std::vector<std::vector<Token>>& windows,
                                      const PplPlan& plan, const CacheSource& source,
                                      const PerplexityOptions& options) {
  if (plan.known) return PerplexityReport{{}, windows.size(), false};
  std::optional<ProgressBar> bar;
  return measure_perplexity(engine, windows, plan.recipes, source, options,
                            [&](std::size_t done, std::size_t total) {
                              if (!bar) bar.emplace("reading", "tokens", total);
                              bar->update(done);
                            });
}

// Writes and prints it; the exit status.
Result<int> tell_ppl(const PplFlags& flags, const PerplexityReport& report, std::size_t length,
                 Json json) {
  bool failed = false;
  for (const PerplexityRow& row : report.rows) {
    // What calibrated ones use was said when they were made.
    if (row.recipe.find("calib=online") != std::string::npos) {
      fmt::print(stderr, "kvspan: {}: code {}\n", row.recipe, row.code);
    }
    json["rows"].push_back(to_json(row, length));
    failed |= row.failed.has_value();
  }
  KVSPAN_CHECK_OK(write_json(json, flags.json));
  if (flags.json != "-") {
    fmt::print("{}", table_of(report));
    if (flags.by_position) fmt::print("\n{}", position_table(report, length));
  }
  if (report.windows < static_cast<std::size_t>(flags.windows)) {
    fmt::print(stderr, "kvspan: {} of {} windows were read{}\n", report.windows, flags.windows,
               report.cancelled ? " before Ctrl-C; the figures hold what was read"
                                : ": the text has no more");
  }
  if (report.cancelled) return kInterruptedExit;
  return failed ? 1 : 0;
}

// Codes come from the calibration of the model as it is, whatever form its weights are read in.
Result<std::optional<Calibration>> calibration_if_needed(const PplFlags& flags, const std::string& path) {
  std::optional<Calibration> calibration;
  KVSPAN_TRY(const bool needed, any_needs_calibration(flags.asked()));
  if (needed) {
    KVSPAN_TRY(const auto model, Engine::load(path, {static_cast<int>(flags.model.threads)}));
    model->set_cancel_flag(&interrupted());
    KVSPAN_TRY(calibration, calibration_for(*model));
  }
  return calibration;
}

Result<int> eval_ppl(PplFlags flags) {
  // Before anything takes time; the full cache's size does not matter to what is allowed.
  if (flags.equal.given()) {
    if (const auto asked = asked_bytes(flags.equal, std::uint64_t{1} << 40); !asked) return asked.error();
  }
  KVSPAN_CHECK_OK(check_json_target(flags.json));
  KVSPAN_CHECK_OK(apply_cpu_level(flags.model));
  catch_interrupts(Interrupts::kOnce);
  KVSPAN_TRY(const std::string path, find_model_path(flags.model.model));
  KVSPAN_TRY(const auto calibration, calibration_if_needed(flags, path));
  KVSPAN_TRY(const auto floats, float_weights(path, flags.weights));
  EngineOptions engine_options;
  engine_options.threads = static_cast<int>(flags.model.threads);
  engine_options.block = static_cast<std::int32_t>(std::max(flags.block, std::int64_t{512}));
  KVSPAN_TRY(engine_options.gpu_layers, flags.model.device.layers());
  fmt::print(stderr, "{}", flags.model.device.note());
  KVSPAN_TRY(const auto engine, Engine::load(floats ? floats->path() : path, engine_options));
  engine->set_cancel_flag(&interrupted());
  if (flags.context == 0) flags.context = std::min(kUsualContext, engine->info().context);
  Json identity{{"task", "ppl"},
                {"fingerprint", engine->fingerprint()},
                {"weights", flags.weights},
                {"ctx", flags.context},
                {"windows", flags.windows},
                {"block", flags.block},
                {"long", flags.by_position}};
  KVSPAN_TRY(const auto windows, read_windows(flags, *engine, identity));
  KVSPAN_TRY(const Json before, earlier_run(flags.resume, flags.json, identity));
  KVSPAN_TRY(const auto earlier, finished_rows(before));

  const Calibration* known = calibration ? &*calibration : nullptr;
  PerplexityOptions options;
  options.block = static_cast<std::int32_t>(flags.block);
  options.buckets = flags.by_position ? kBuckets : 0;
  std::optional<EqualBytes> equal;
  if (flags.equal.given()) {
    KVSPAN_TRY(equal, fitted_recipes(flags, *engine, windows.front(), known, before));
  }
  KVSPAN_TRY(const PplPlan plan,
             plan_ppl(equal ? recipes_of(*equal) : flags.recipes,
                       flags.peer.empty() ? std::vector<std::string>() : flags.peer_kv, earlier,
                       options));
  KVSPAN_TRY(PerplexityReport report,
             measure_plan(*engine, windows, plan, cache_source(*engine, known), options));
  merge(earlier, plan.order, report);
  if (report.rows.front().figures.positions == 0) {
    return fail(ErrorCode::kCancelled, "stopped before anything was measured");
  }

  const std::size_t length = windows.front().size();
  KVSPAN_TRY(const std::string fingerprint, file_fingerprint(path));
  Json json{{"task", "ppl"},
            {"model", path},
            {"model_fingerprint", fingerprint},
            {"weights", flags.weights},
            {"ctx", length},
            {"windows", report.windows},
            {"block", options.block},
            {"threads", engine_options.threads},
            {"cpu_level", std::string(name_of(cpu_level()))},
            {"cancelled", report.cancelled},
            {"identity", std::move(identity)},
            {"rows", Json::array()}};
  if (equal) json["equal_bytes"] = to_json(*equal);
  return tell_ppl(flags, report, length, std::move(json));
}

}  // namespace

Action setup_eval_ppl(CLI::App& app) {
  auto flags = std::make_shared<PplFlags>();
  add_model_flag(app, flags->model);
  add_thread_flags(app, flags->model);
  add_device_flags(app, flags->model.device);
  add_recipe_flag(app, "--cache", flags->recipes, "Recipes to measure beside full");
  add_equal_bytes_flags(app, flags->equal);
  add_measured_text_flag(app, flags->file);
  add_integer(app, "-c,--ctx", flags->context, "Tokens of a window", 0, 1 << 24,
              fmt::format("0: {}, or the model's context where that is shorter", kUsualContext));
  add_integer(app, "--windows", flags->windows, "Windows to read at most", 1, 1 << 20);
  add_integer(app, "--block", flags->block,
              "Tokens read at once; they attend to each other as they came", 1, 8192);
  add_weights_flag(app, flags->weights);
  add_choice(app, "--peer", flags->peer, "Measure another engine in the same run", {"llama.cpp"});
  add_list(app, "--peer-kv", flags->peer_kv, "KV types of llama.cpp: f32, f16, q8_0, q4_0");
  add_switch(app, "--long", flags->by_position, "Also by position in the window");
  add_json_flag(app, flags->json);
  add_resume_flag(app, flags->resume);
  set_footer(
      app,
      "Examples:\n"
      "  kvspan eval ppl -m smollm2 --file wiki.test.raw --windows 4 --cache full:store=f32\n"
      "  kvspan eval ppl -m smollm2 --weights f32 --peer llama.cpp --peer-kv f16,q4_0\n"
      "  kvspan eval ppl -m gemma3 --file book.txt --ctx 2048 --long --json ppl.json\n"
      "  kvspan eval ppl -m smollm2 --cache quant --cache bands --json ppl.json --resume\n"
      "  kvspan eval ppl -m smollm2 --at 8x --json ppl_8x.json\n"
      "  kvspan eval ppl -m smollm2 --at 5x --cache bands --cache quant --cache turbo\n"
      "Counted are the predictions in the second half of each window, as llama.cpp does.");
  return [flags] { return eval_ppl(*flags); };
}

}  // namespace kvspan::cli
