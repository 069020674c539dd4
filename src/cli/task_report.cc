// SPDX-License-Identifier: Apache-2.0
#include "cli/task_report.h"

#include <cmath>

#include "base/cpu_level.h"
#include "base/fail.h"
#include "cli/format.h"
#include "cli/interrupt.h"
#include "cli/table.h"

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
  Json values = Json::array();
  for (const Measured& row : outcome.values(metric)) values.push_back(row.value);
  to["by_row"][info.name] = std::move(values);
}

Json to_json(const TaskResult& result, const RecipeOutcome& outcome,
             const BootstrapOptions& options) {
  Json json{{"task", result.task}, {"recipe", outcome.recipe}, {"rows", outcome.rows.size()}};
  Json by_row;
  for (std::size_t m = 0; m < result.metrics.size(); ++m) {
    add_metric(result, m, outcome, options, json);
  }
  by_row = std::move(json["by_row"]);
  json.erase("by_row");
  json["tokens"] = mean_of(outcome.tokens, outcome.rows.size());
  json["kv_bytes"] = mean_of(outcome.kv_bytes, outcome.rows.size());
  json["kv_bytes_full"] = mean_of(outcome.kv_bytes_full, outcome.rows.size());
  json["kv_ratio"] = ratio_or_null(static_cast<double>(outcome.kv_bytes_full),
                                   static_cast<double>(outcome.kv_bytes));
  json["shared_bytes"] = outcome.shared_bytes;
  if (outcome.failed) json["failed"] = *outcome.failed;
  json["by_row"] = std::move(by_row);
  return json;
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
        std::vector<std::string> cells{
            outcome.recipe,
            fmt::format("{}", outcome.rows.size()),
            format_ratio(outcome.kv_bytes_full, outcome.kv_bytes),
            metric.name,
            cell(true, value(f.value)),
            cell(true, fmt::format("{} .. {}", value(f.interval.low), value(f.interval.high))),
            cell(!is_reference, difference(paired.difference)),
            cell(!is_reference, fmt::format("{} .. {}", difference(paired.interval.low),
                                            difference(paired.interval.high))),
            cell(!is_reference, fmt::format("{:.3f}", paired.p)),
            outcome.failed ? "failed " + *outcome.failed : ""};
        if (several) cells.insert(cells.begin(), result.task);
        table.add_row(std::move(cells));
      }
    }
  }
  return table.text();
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
