// SPDX-License-Identifier: Apache-2.0
// F1 and F3, and all of them together; F2 and F4 have files of their own.
#include "eval/study/study_verdicts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "eval/study/rank_statistics.h"

namespace kvspan {
namespace {

using Outcome = StudyVerdict::Outcome;

constexpr std::array<std::string_view, 3> kChunked{"fd", "oja", "spectral"};

bool is_chunked(const StudyRow& row) {
  return std::find(kChunked.begin(), kChunked.end(), row.family) != kChunked.end();
}

bool enough(const StudyRow& row, const VerdictOptions& options) {
  return parts_of(row.measured, options.context).kl.size() >= options.least_parts;
}

// What a recipe costs, measured in two ways that have to agree. Perplexity on one text can also
// fall by chance, and falls by much where a cache is broken; KL counts every change against the
// recipe.
struct Cost {
  StudyNumber perplexity, divergence;  // both in per cent of perplexity

  bool surely_within(double most) const {
    return perplexity.interval.low >= -most && perplexity.interval.high <= most &&
           divergence.interval.high <= most;
  }
  bool surely_above(double most) const {
    return perplexity.interval.low > most || perplexity.interval.high < -most ||
           divergence.interval.low > most;
  }
};

Cost cost_of(const StudyRow& row, const VerdictOptions& options,
             const BootstrapOptions& bootstrap) {
  const RowParts parts = parts_of(row.measured, options.context);
  const Interval kl = kl_interval(parts, bootstrap);
  const auto number = [&](std::string_view name, double value, const Interval& interval) {
    StudyNumber out;
    out.name = std::string(name);
    out.recipe = row.measured.recipe;
    out.value = value;
    out.interval = interval;
    out.confidence = bootstrap.confidence;
    out.unit = "%";
    out.threshold = options.most_dppl_pct;
    out.n = parts.kl.size();
    return out;
  };
  return {number("perplexity", row.measured.figures.dppl_pct, dppl_interval(parts, bootstrap)),
          number("KL as perplexity", kl_as_dppl_pct(row.measured.figures.kl),
                 {kl_as_dppl_pct(kl.low), kl_as_dppl_pct(kl.high)})};
}

StudyNumber growth(const StudyRow& row, const VerdictOptions& options) {
  std::vector<double> length, error;
  for (const PositionBlock& block : row.measured.blocks) {
    if (block.position < options.length_from || !(block.kl > 0.0)) continue;
    length.push_back(std::log2(block.position + 0.5 * block.count));
    error.push_back(std::log(block.kl));
  }
  const auto statistic = [&](std::span<const std::uint32_t> drawn) {
    std::vector<double> x, y;
    for (const std::uint32_t i : drawn) {
      x.push_back(length[i]);
      y.push_back(error[i]);
    }
    return std::exp(least_squares_slope(x, y));
  };
  StudyNumber out;
  out.name = "growth of KL with the length";
  out.recipe = row.measured.recipe;
  out.unit = "x per doubling";
  out.threshold = options.sharp;
  out.n = length.size();
  // An error that is as large as can be has nowhere to grow, which is no merit.
  const Interval kl = kl_interval(parts_of(row.measured, options.context), options.bootstrap);
  out.decides = is_chunked(row) && kl.high < options.broken;
  out.confidence = options.bootstrap.confidence;
  out.value = length.empty() ? std::nan("") : std::exp(least_squares_slope(length, error));
  out.interval = bootstrap_cases(length.size(), statistic, options.bootstrap);
  return out;
}

}  // namespace

std::string_view name_of(StudyVerdict::Outcome outcome) noexcept {
  constexpr std::array<std::string_view, 3> kNames{"holds", "refuted", "undecided"};
  return kNames[static_cast<std::size_t>(outcome)];
}

void StudyVerdict::choose_change(std::string if_holds, std::string if_refuted,
                                 std::string if_undecided) {
  would_change = outcome == Outcome::kHolds     ? std::move(if_holds)
                 : outcome == Outcome::kRefuted ? std::move(if_refuted)
                                                : std::move(if_undecided);
}

StudyVerdict judge_rank(std::span<const StudyRow> rows, const VerdictOptions& options) {
  StudyVerdict out;
  out.id = "F1";
  out.claim = "some rank r <= d/4 costs at most 1 % perplexity";
  out.falsifier = "no r <= d/4 reaches <= 1 % perplexity increase";
  std::vector<const StudyRow*> candidates;
  for (const StudyRow& row : rows) {
    const bool asked = row.group == "rank" && row.rank_share && *row.rank_share <= 0.25;
    if (asked && row.usable() && enough(row, options)) candidates.push_back(&row);
  }
  if (candidates.empty()) {
    out.because = "no recipe of rank d/4 or below has been measured on enough text";
    out.would_change = "measuring group rank";
    return out;
  }
  // That the best of many is good needs an interval that holds for all of them at once; that all
  // are bad does not.
  BootstrapOptions strict = options.bootstrap;
  strict.confidence = 1.0 - (1.0 - strict.confidence) / static_cast<double>(candidates.size());
  bool all_bad = true;
  const StudyRow* best = nullptr;
  for (const StudyRow* row : candidates) {
    const Cost cost = cost_of(*row, options, options.bootstrap);
    all_bad &= cost.surely_above(options.most_dppl_pct);
    if (cost_of(*row, options, strict).surely_within(options.most_dppl_pct)) {
      out.outcome = Outcome::kHolds;
    }
    for (const StudyNumber& number : {cost.perplexity, cost.divergence}) {
      out.numbers.push_back(number);
    }
    if (best == nullptr || row->measured.figures.kl < best->measured.figures.kl) best = row;
  }
  if (all_bad) out.outcome = Outcome::kRefuted;
  const Cost cost = cost_of(*best, options, options.bootstrap);
  out.because = fmt::format(
      "the best of {} recipes with r <= d/4 is {}: KL {:.4f}, as much as {:+.2f} % ({:+.2f} .. "
      "{:+.2f}), and perplexity {:+.2f} % ({:+.2f} .. {:+.2f})",
      candidates.size(), best->measured.recipe, best->measured.figures.kl, cost.divergence.value,
      cost.divergence.interval.low, cost.divergence.interval.high, cost.perplexity.value,
      cost.perplexity.interval.low, cost.perplexity.interval.high);
  out.choose_change("other text or models on which every such recipe costs more than 1 %",
                    "a recipe with r <= d/4 whose intervals reach 1 % or less",
                    "more text: intervals that lie on one side of 1 %");
  return out;
}

StudyVerdict judge_length(std::span<const StudyRow> rows, const VerdictOptions& options) {
  StudyVerdict out;
  out.id = "F3";
  out.claim = "with chunks the error does not grow sharply with the length";
  out.falsifier = "error grows sharply with length despite chunking";
  std::size_t flat = 0, sharp = 0, chunked = 0;
  for (const StudyRow& row : rows) {
    if (row.group != "length" || !row.usable() || row.family == "full") continue;
    if (!enough(row, options)) continue;
    StudyNumber number = growth(row, options);
    if (number.decides) {
      ++chunked;
      flat += number.interval.high < options.sharp;
      sharp += number.interval.low > options.sharp;
    }
    out.numbers.push_back(std::move(number));
  }
  if (flat > 0) out.outcome = Outcome::kHolds;
  if (chunked > 0 && sharp == chunked) out.outcome = Outcome::kRefuted;
  out.because =
      chunked == 0
          ? fmt::format("no recipe with chunks and a KL below {:g} has been measured by position",
                        options.broken)
          : "KL grows by";
  for (const StudyNumber& number : out.numbers) {
    if (!number.decides) continue;
    out.because += fmt::format(" {:.2f}x ({:.2f} .. {:.2f}) with {}", number.value,
                               number.interval.low, number.interval.high, number.recipe);
    out.because += &number == &out.numbers.back() ? "" : ",";
  }
  if (chunked > 0) {
    if (out.because.back() == ',') out.because.pop_back();
    out.because +=
        fmt::format(", for each doubling of the length (sharp: over {}x)", options.sharp);
  }
  out.choose_change("longer windows on which every recipe with chunks grows sharply",
                    "a recipe with chunks whose growth stays below that",
                    "longer or more windows: narrower intervals of the growth");
  return out;
}

std::vector<StudyVerdict> judge(const StudyData& data, const VerdictOptions& options) {
  return {judge_rank(data.rows, options), judge_adaptive(data.rows, options),
          judge_length(data.rows, options), judge_bounds(data.samples, options)};
}

}  // namespace kvspan
