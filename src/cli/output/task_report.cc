// SPDX-License-Identifier: Apache-2.0
#include "cli/output/task_report.h"

#include <array>
#include <cmath>
#include <utility>

#include "base/cpu_level.h"
#include "base/fail.h"
#include "cli/output/format.h"
#include "cli/output/table.h"
#include "cli/terminal/interrupt.h"

namespace kvspan::cli {
namespace {

using Kind = Metric::Kind;

std::string value_text(Kind kind, double value) {
  if (kind == Kind::kShare) return fmt::format("{:.1f} %", 100.0 * value);
  return fmt::format("{:.{}f}", value, kind == Kind::kNats ? 4 : 3);
}

// Differences of shares are in points, those of perplexities in per cent.
double shown_difference(Kind kind, double difference) {
  if (kind == Kind::kShare) return 100.0 * difference;
  return kind == Kind::kNats ? difference : 100.0 * std::expm1(difference);
}

std::string difference_text(Kind kind, double difference) {
  const double shown = shown_difference(kind, difference);
  if (kind == Kind::kShare) return fmt::format("{:+.1f}", shown);
  return kind == Kind::kNats ? fmt::format("{:+.4f}", shown) : fmt::format("{:+.2f} %", shown);
}

constexpr std::array kRowNumbers{std::pair{"tokens", &RowOutcome::tokens},
                                 std::pair{"kv_bytes", &RowOutcome::kv_bytes},
                                 std::pair{"kv_bytes_full", &RowOutcome::kv_bytes_full}};

std::uint64_t mean_of(std::uint64_t sum, std::size_t rows) {
  return rows == 0 ? 0 : (sum + rows / 2) / rows;
}

void add_metric(const TaskResult& result, std::size_t metric, const RecipeOutcome& outcome,
                const BootstrapOptions& options, Json& to) {
  const Metric& info = result.metrics[metric];
  const MetricFigures figures =
      figures_of(info, metric, result.report.recipes.front(), outcome, options);
  const PairedDifference& paired = figures.against_reference;
  to[info.name] = figures.value;
  to[info.name + "_low"] = figures.interval.low;
  to[info.name + "_high"] = figures.interval.high;
  const std::string difference =
      info.name + (info.kind == Kind::kPerplexity ? "_diff_nats" : "_diff");
  to[difference] = paired.difference;
  to[difference + "_low"] = paired.interval.low;
  to[difference + "_high"] = paired.interval.high;
  to[info.name + "_p"] = paired.p;
}

// Every row's numbers, for tests of one's own and for --resume.
Json by_row_json(const TaskResult& result, const RecipeOutcome& outcome) {
  Json out;
  for (std::size_t m = 0; m < result.metrics.size(); ++m) {
    const std::string& name = result.metrics[m].name;
    out[name] = Json::array();
    Json weights = Json::array();
    bool weighted = false;
    for (const Measured& row : outcome.values(m)) {
      out[name].push_back(row.value);
      weights.push_back(row.weight);
      weighted |= row.weight != 1.0;
    }
    if (weighted) out[name + "_weight"] = std::move(weights);
  }
  for (const auto& [name, number] : kRowNumbers) {
    out[name] = Json::array();
    for (const RowOutcome& row : outcome.rows) out[name].push_back(row.*number);
  }
  return out;
}

Json to_json(const TaskResult& result, const RecipeOutcome& outcome,
             const BootstrapOptions& options) {
  Json json{{"task", result.task}, {"recipe", outcome.recipe}, {"rows", outcome.rows.size()}};
  for (std::size_t m = 0; m < result.metrics.size(); ++m) {
    add_metric(result, m, outcome, options, json);
  }
  for (const auto& [name, number] : kRowNumbers) {
    json[name] = mean_of(outcome.sum(number), outcome.rows.size());
  }
  json["kv_ratio"] = ratio_or_null(static_cast<double>(outcome.sum(&RowOutcome::kv_bytes_full)),
                                   static_cast<double>(outcome.sum(&RowOutcome::kv_bytes)));
  json["shared_bytes"] = outcome.shared_bytes;
  json["compressed_rows"] = outcome.compressed_rows();
  if (outcome.failed) json["failed"] = *outcome.failed;
  json["by_row"] = by_row_json(result, outcome);
  return json;
}

RecipeOutcome outcome_from(const Json& json, const Json& samples,
                           const std::vector<Metric>& metrics) {
  RecipeOutcome outcome;
  outcome.recipe = json.at("recipe").get<std::string>();
  outcome.shared_bytes = json.at("shared_bytes").get<std::uint64_t>();
  const Json& by_row = json.at("by_row");
  for (std::size_t i = 0; i < json.at("rows").get<std::size_t>(); ++i) {
    RowOutcome row;
    for (const Metric& metric : metrics) {
      const std::string weight = metric.name + "_weight";
      row.metrics.push_back({by_row.at(metric.name).at(i).get<double>(),
                             by_row.contains(weight) ? by_row[weight].at(i).get<double>() : 1.0});
    }
    for (const auto& [name, number] : kRowNumbers) {
      row.*number = by_row.at(name).at(i).get<std::uint64_t>();
    }
    if (samples.is_array()) row.text = samples.at(i).at("texts").at(outcome.recipe);
    outcome.rows.push_back(std::move(row));
  }
  return outcome;
}

}  // namespace

std::string table_of(const std::vector<TaskResult>& results, const BootstrapOptions& options) {
  using enum Table::Align;
  const bool several = results.size() > 1;
  std::vector<Table::Column> columns{
      {"recipe"},       {"rows", kRight},    {"ratio", kRight}, {"metric"},    {"value", kRight},
      {"95 %", kRight}, {"vs full", kRight}, {"95 %", kRight},  {"p", kRight}, {""}};
  if (several) columns.insert(columns.begin(), Table::Column{"task"});
  Table table(std::move(columns));
  for (const TaskResult& result : results) {
    for (const RecipeOutcome& outcome : result.report.recipes) {
      const bool is_reference = &outcome == &result.report.recipes.front();
      const bool idle = !is_reference && !outcome.rows.empty() && outcome.compressed_rows() == 0;
      for (std::size_t m = 0; m < result.metrics.size(); ++m) {
        const Metric& metric = result.metrics[m];
        const MetricFigures f =
            figures_of(metric, m, result.report.recipes.front(), outcome, options);
        const auto cell = [&](bool shown, std::string text) {
          return shown && !outcome.rows.empty() ? std::move(text) : std::string("-");
        };
        const auto value = [&](double v) { return value_text(metric.kind, v); };
        const auto difference = [&](double v) { return difference_text(metric.kind, v); };
        const PairedDifference& paired = f.against_reference;
        // Without anything compressed a recipe that scores as full does has shown nothing.
        const bool compares = !is_reference && !(idle && paired.difference == 0.0);
        std::vector<std::string> cells{
            outcome.recipe,
            fmt::format("{}", outcome.rows.size()),
            format_ratio(outcome.sum(&RowOutcome::kv_bytes_full),
                         outcome.sum(&RowOutcome::kv_bytes)),
            metric.name,
            cell(true, value(f.value)),
            cell(true, fmt::format("{} .. {}", value(f.interval.low), value(f.interval.high))),
            cell(compares, difference(paired.difference)),
            cell(compares, fmt::format("{} .. {}", difference(paired.interval.low),
                                       difference(paired.interval.high))),
            cell(compares, fmt::format("{:.3f}", paired.p)),
            outcome.failed ? "failed " + *outcome.failed
            : idle         ? "nothing compressed"
                           : ""};
        if (several) cells.insert(cells.begin(), result.task);
        table.add_row(std::move(cells));
      }
    }
  }
  return table.text();
}

Json samples_json(const std::vector<std::vector<std::string>>& answers, const RowsReport& report) {
  Json out = Json::array();
  for (std::size_t i = 0; i < report.rows; ++i) {
    Json sample{{"answers", answers[i]}, {"texts", Json::object()}};
    for (const RecipeOutcome& outcome : report.recipes) {
      if (i < outcome.rows.size()) sample["texts"][outcome.recipe] = outcome.rows[i].text;
    }
    out.push_back(std::move(sample));
  }
  return out;
}

Result<std::vector<RecipeOutcome>> earlier_rows(const Json& before, const std::string& task,
                                                const std::vector<Metric>& metrics) {
  std::vector<RecipeOutcome> out;
  if (before.is_null()) return out;
  try {
    const Json samples = before.value("samples", Json::object()).value(task, Json());
    for (const Json& json : before.at("rows")) {
      if (json.at("task") == task) out.push_back(outcome_from(json, samples, metrics));
    }
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kCorruptData, "--resume: the file of --json is damaged: {}",
                error.what());
  }
  return out;
}

Result<int> report_tasks(const TaskFlags& flags, const EvalSession& session, Json about,
                         const std::vector<TaskResult>& results) {
  BootstrapOptions options;
  options.seed = static_cast<std::uint64_t>(flags.seed);
  bool failed = false, cancelled = false, measured = false;
  for (const TaskResult& result : results) {
    cancelled |= result.report.cancelled;
    measured |= result.report.rows > 0;
    for (const RecipeOutcome& outcome : result.report.recipes) failed |= outcome.failed.has_value();
  }
  if (!measured) return fail(ErrorCode::kCancelled, "stopped before anything was measured");
  about["model"] = session.path;
  about["weights"] = flags.weights;
  about["threads"] = session.engine->options().threads;
  about["cpu_level"] = std::string(name_of(cpu_level()));
  about["seed"] = flags.seed;
  about["resamples"] = options.resamples;
  about["cancelled"] = cancelled;
  about["rows"] = Json::array();
  for (const TaskResult& result : results) {
    for (const RecipeOutcome& outcome : result.report.recipes) {
      about["rows"].push_back(to_json(result, outcome, options));
    }
    if (!result.samples.is_null()) about["samples"][result.task] = result.samples;
  }
  KVSPAN_CHECK_OK(write_json(about, flags.json));
  if (flags.json != "-") fmt::print("{}", table_of(results, options));
  for (const TaskResult& result : results) {
    if (!result.report.cancelled) continue;
    fmt::print(stderr, "kvspan: {} of {} rows of {} were scored before Ctrl-C\n",
               result.report.rows, result.asked, result.task);
  }
  if (cancelled) return kInterruptedExit;
  return failed ? 1 : 0;
}

}  // namespace kvspan::cli
