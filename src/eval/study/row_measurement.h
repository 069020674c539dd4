// SPDX-License-Identifier: Apache-2.0
// Rows of a task, scored one by one with the caches of several recipes. Every row is a sequence of
// its own, and all recipes score a row before the next one begins, so that whatever ends the run
// leaves whole rows, of the same questions for every recipe.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/bootstrap.h"
#include "eval/perplexity/perplexity.h"

namespace kvspan {

// A number that every row of a task gets.
struct Metric {
  enum class Kind {
    kShare,       // of rows or tokens, 0..1
    kNats,        // a mean, smaller is better
    kPerplexity,  // exp of a mean of nats
  };
  std::string name;
  Kind kind = Kind::kShare;
};

struct RowOutcome {
  std::vector<Measured> metrics;  // as many as the task has
  std::string text;               // what was generated, where a task generates
  // Filled in by measure_rows: tokens held at the row's end, their bytes, those of the same in f16.
  std::uint64_t tokens = 0;
  std::uint64_t kv_bytes = 0;
  std::uint64_t kv_bytes_full = 0;
};

// Scores row `row` with `cache`, which is empty; what it leaves there is what bytes are counted of.
using ScoreRow = std::function<Result<RowOutcome>(KvCache& cache, std::size_t row)>;

struct RecipeOutcome {
  std::string recipe;  // canonical
  std::vector<RowOutcome> rows;
  std::uint64_t shared_bytes = 0;     // of codes that all sequences share
  std::optional<std::string> failed;  // why; `rows` are those before

  // Rows whose cache held fewer bytes than f16 takes; in the others the recipe had nothing to do.
  std::size_t compressed_rows() const;
  // Of a number of every row.
  std::uint64_t sum(std::uint64_t RowOutcome::*number) const;

  std::vector<Measured> values(std::size_t metric) const;
};

struct RowsReport {
  std::vector<RecipeOutcome> recipes;  // the reference first
  std::size_t rows = 0;                // scored by all recipes that still ran
  bool cancelled = false;
};

// The reference, then `recipes` in order. A recipe that fails leaves the others running; only a
// recipe that cannot be made and a failing reference end it all. Cancelled by the engine's flag, it
// returns what is there. Rows that `before` has of a recipe are taken from there and not scored
// again. `progress` gets rows scored over all recipes.
Result<RowsReport> measure_rows(
    const Engine& engine, std::size_t rows, const std::string& reference,
    std::span<const std::string> recipes, const CacheSource& source, const ScoreRow& score,
    const std::function<void(std::size_t done, std::size_t total)>& progress = nullptr,
    std::span<const RecipeOutcome> before = {});

// A metric of one recipe beside the reference's on the rows that both have.
struct MetricFigures {
  double value = 0.0;
  Interval interval;
  PairedDifference against_reference;  // of nats for a perplexity
};
MetricFigures figures_of(const Metric& metric, std::size_t index, const RecipeOutcome& reference,
                         const RecipeOutcome& recipe, const BootstrapOptions& options);

}  // namespace kvspan
