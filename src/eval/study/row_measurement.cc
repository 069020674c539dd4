// SPDX-License-Identifier: Apache-2.0
#include "eval/study/row_measurement.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"

namespace kvspan {
namespace {

struct Subject {
  std::unique_ptr<KvCache> cache;
  RecipeOutcome outcome;
  const RecipeOutcome* before = nullptr;  // of an earlier run
};

void note_bytes(const CacheShape& shape, Subject& subject) {
  const CacheBytes bytes = subject.cache->bytes();
  RowOutcome& row = subject.outcome.rows.back();
  row.tokens = static_cast<std::uint64_t>(subject.cache->tokens());
  row.kv_bytes = bytes.total;
  row.kv_bytes_full = full_rank_f16_bytes(shape, subject.cache->tokens());
  subject.outcome.shared_bytes = bytes.shared;
}

}  // namespace

std::vector<Measured> RecipeOutcome::values(std::size_t metric) const {
  std::vector<Measured> out;
  for (const RowOutcome& row : rows) out.push_back(row.metrics[metric]);
  return out;
}

std::size_t RecipeOutcome::compressed_rows() const {
  return static_cast<std::size_t>(
      std::count_if(rows.begin(), rows.end(),
                    [](const RowOutcome& row) { return row.kv_bytes < row.kv_bytes_full; }));
}

std::uint64_t RecipeOutcome::sum(std::uint64_t RowOutcome::*number) const {
  std::uint64_t total = 0;
  for (const RowOutcome& row : rows) total += row.*number;
  return total;
}

Result<RowsReport> measure_rows(
    const Engine& engine, std::size_t rows, const std::string& reference,
    std::span<const std::string> recipes, const CacheSource& source, const ScoreRow& score,
    const std::function<void(std::size_t done, std::size_t total)>& progress,
    std::span<const RecipeOutcome> before) {
  std::vector<Subject> subjects;
  std::vector<std::string> all{reference};
  all.insert(all.end(), recipes.begin(), recipes.end());
  for (const std::string& recipe : all) {
    Subject subject;
    KVSPAN_TRY(subject.cache, source(recipe));
    subject.outcome.recipe = subject.cache->recipe();
    for (const RecipeOutcome& earlier : before) {
      if (earlier.recipe != subject.outcome.recipe) continue;
      subject.before = &earlier;
      subject.outcome.shared_bytes = earlier.shared_bytes;
    }
    subjects.push_back(std::move(subject));
  }
  RowsReport report;
  std::size_t done = 0;
  for (; report.rows < rows && !report.cancelled; ++report.rows) {
    for (Subject& subject : subjects) {
      if (progress) progress(done++, rows * subjects.size());
      if (subject.outcome.failed) continue;
      if (subject.before != nullptr && report.rows < subject.before->rows.size()) {
        subject.outcome.rows.push_back(subject.before->rows[report.rows]);
        continue;
      }
      subject.cache->clear();
      auto outcome = score(*subject.cache, report.rows);
      if (outcome) {
        subject.outcome.rows.push_back(std::move(*outcome));
        note_bytes(engine.cache_shape(), subject);
        continue;
      }
      if (outcome.error().code == ErrorCode::kCancelled) {
        report.cancelled = true;
        break;
      }
      if (&subject == &subjects.front()) {
        return fail(outcome.error().code, "row {} with the reference {}: {}", report.rows + 1,
                    subject.outcome.recipe, outcome.error().message);
      }
      subject.outcome.failed =
          fmt::format("at row {}: {}", report.rows + 1, outcome.error().message);
    }
    if (report.cancelled) break;
  }
  if (progress) progress(done, rows * subjects.size());
  for (Subject& subject : subjects) {
    // Of a row that was cut short nothing is kept, so that all recipes have the same rows.
    auto& scored = subject.outcome.rows;
    if (scored.size() > report.rows) scored.resize(report.rows);
    report.recipes.push_back(std::move(subject.outcome));
  }
  return report;
}

MetricFigures figures_of(const Metric& metric, std::size_t index, const RecipeOutcome& reference,
                         const RecipeOutcome& recipe, const BootstrapOptions& options) {
  const std::vector<Measured> own = recipe.values(index);
  std::vector<Measured> beside = reference.values(index);
  beside.resize(own.size());
  MetricFigures out;
  out.value = weighted_mean(own);
  out.interval = bootstrap_interval(own, options);
  out.against_reference = paired_difference(beside, own, options);
  if (metric.kind == Metric::Kind::kPerplexity) {
    out.value = std::exp(out.value);
    out.interval = {std::exp(out.interval.low), std::exp(out.interval.high)};
  }
  return out;
}

}  // namespace kvspan
