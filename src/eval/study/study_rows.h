// SPDX-License-Identifier: Apache-2.0
// What a study has measured: a row for each recipe of each group, and errors beside their bounds.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/bootstrap.h"
#include "eval/perplexity/perplexity.h"
#include "eval/study/tracking_cache.h"

namespace kvspan {

struct StudyRow {
  std::string group;                 // "rank", "equal_bytes", ..
  std::string label;                 // what is varied; may be empty
  std::string family;                // the method's name
  std::optional<double> level;       // bits aimed at, in group equal_bytes
  std::optional<double> rank_share;  // (rk + rv) / 2d, where the recipe gives ranks
  PerplexityRow measured;

  bool measured_well() const { return !measured.failed && measured.figures.positions > 0; }
  // Something can be concluded from it.
  bool usable() const { return measured_well() && !measured.nothing_compressed(); }
  double bits() const { return measured.bits(); }
};

struct StudySample {
  std::string recipe;
  TrackedStep step;
};

struct StudyData {
  std::vector<StudyRow> rows;
  std::vector<StudySample> samples;
};

// The parts of a row's counted positions (window's second halves) that are drawn at random to say
// how sure a figure is: blocks of positions, or, from eight windows on, whole windows. `context`:
// tokens of a window.
struct RowParts {
  std::vector<Measured> nll_diff, kl;  // of equal length and order for all rows of a study
};
RowParts parts_of(const PerplexityRow& row, std::int32_t context);

// Intervals of a row's figures: perplexity change in per cent, and mean KL.
Interval dppl_interval(const RowParts& parts, const BootstrapOptions& options);
Interval kl_interval(const RowParts& parts, const BootstrapOptions& options);
// A mean KL as a change of perplexity: what it grows by, in per cent, on text that the full cache
// itself would write, where nothing can be won by chance.
double kl_as_dppl_pct(double kl);

}  // namespace kvspan
