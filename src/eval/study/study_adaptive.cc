// SPDX-License-Identifier: Apache-2.0
// F2: adaptive directions against static ones on equal bytes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "eval/study/study_verdicts.h"

namespace kvspan {
namespace {

using Outcome = StudyVerdict::Outcome;

constexpr std::array<std::string_view, 3> kAdaptive{"fd", "rotate", "oja"};
// Bytes that differ by less count as equal.
constexpr double kSameBits = 0.02;

// An adaptive row between the static rows next below and above it in bytes.
struct Comparison {
  const StudyRow* row = nullptr;
  RowParts own, below, above;
  double share = 0.0;  // of `above` in the line between the two

  std::size_t cases() const { return own.kl.size(); }
};

double drawn_mean(const std::vector<Measured>& parts, std::span<const std::uint32_t> drawn) {
  double sum = 0.0, weight = 0.0;
  for (const std::uint32_t i : drawn) {
    sum += parts[i].weight * parts[i].value;
    weight += parts[i].weight;
  }
  return sum / weight;
}

// Logarithm of the row's KL over that of static on the same bytes.
double log_ratio(const Comparison& c, std::span<const std::uint32_t> drawn) {
  return std::log(drawn_mean(c.own.kl, drawn)) -
         (1.0 - c.share) * std::log(drawn_mean(c.below.kl, drawn)) -
         c.share * std::log(drawn_mean(c.above.kl, drawn));
}

double log_ratio(const std::vector<Comparison>& comparisons, std::span<const std::uint32_t> drawn) {
  double sum = 0.0;
  for (const Comparison& c : comparisons) sum += log_ratio(c, drawn);
  return sum / static_cast<double>(comparisons.size());
}

// `fixed` by increasing bits. Nothing where the row's bytes are outside of what they span.
std::optional<Comparison> compare(const StudyRow& row, const std::vector<const StudyRow*>& fixed,
                                  const VerdictOptions& options) {
  const std::int32_t context = options.context;
  const StudyRow *below = nullptr, *above = nullptr;
  for (const StudyRow* other : fixed) {
    if (other->bits() <= row.bits() * (1.0 + kSameBits)) below = other;
    if (above == nullptr && other->bits() >= row.bits() * (1.0 - kSameBits)) above = other;
  }
  if (below == nullptr || above == nullptr) return std::nullopt;
  if (above->bits() <= below->bits()) above = below;  // one of equal bytes
  Comparison out{&row, parts_of(row.measured, context), parts_of(below->measured, context),
                 parts_of(above->measured, context), 0.0};
  if (above != below) {
    out.share = std::clamp(
        std::log(row.bits() / below->bits()) / std::log(above->bits() / below->bits()), 0.0, 1.0);
  }
  if (out.cases() < options.least_parts || out.below.kl.size() != out.cases() ||
      out.above.kl.size() != out.cases()) {
    return std::nullopt;
  }
  return out;
}

StudyNumber ratio_number(const std::vector<Comparison>& comparisons,
                         const BootstrapOptions& bootstrap) {
  std::vector<std::uint32_t> all(comparisons.front().cases());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint32_t>(i);
  const Interval logs = bootstrap_cases(
      all.size(),
      [&](std::span<const std::uint32_t> drawn) { return log_ratio(comparisons, drawn); },
      bootstrap);
  StudyNumber out;
  out.value = std::exp(log_ratio(comparisons, all));
  out.interval = {std::exp(logs.low), std::exp(logs.high)};
  out.confidence = bootstrap.confidence;
  out.unit = "ratio";
  out.threshold = 1.0;
  out.n = all.size();
  return out;
}

// Beside the verdict: the same comparison on equal ranks, as the first document has it.
void add_equal_ranks(std::span<const StudyRow> rows, const VerdictOptions& options,
                     std::vector<StudyNumber>& to) {
  for (const StudyRow& fixed : rows) {
    if (fixed.group != "rank" || fixed.family != "static" || !fixed.usable()) continue;
    for (const StudyRow& row : rows) {
      const bool adaptive =
          std::find(kAdaptive.begin(), kAdaptive.end(), row.family) != kAdaptive.end();
      if (row.group != "rank" || !row.usable() || !adaptive || row.label != fixed.label) continue;
      Comparison c{&row,
                   parts_of(row.measured, options.context),
                   parts_of(fixed.measured, options.context),
                   {},
                   0.0};
      c.above = c.below;
      if (c.cases() == 0 || c.cases() != c.below.kl.size()) continue;
      StudyNumber number = ratio_number({c}, options.bootstrap);
      number.name = fmt::format("KL over static's on equal ranks, {}", fixed.label);
      number.recipe = row.measured.recipe;
      number.decides = false;
      to.push_back(std::move(number));
    }
  }
}

}  // namespace

StudyVerdict judge_adaptive(std::span<const StudyRow> rows, const VerdictOptions& options) {
  StudyVerdict out;
  out.id = "F2";
  out.claim = "directions that follow the text beat static ones on equal bytes";
  out.falsifier = "adaptive (fd, oja, rotate) does not beat static at equal bytes";
  std::vector<const StudyRow*> fixed;
  for (const StudyRow& row : rows) {
    if (row.group == "equal_bytes" && row.family == "static" && row.usable()) fixed.push_back(&row);
  }
  std::sort(fixed.begin(), fixed.end(),
            [](const StudyRow* a, const StudyRow* b) { return a->bits() < b->bits(); });
  // Three families are asked, so each interval is the stricter.
  BootstrapOptions strict = options.bootstrap;
  strict.confidence = 1.0 - (1.0 - strict.confidence) / static_cast<double>(kAdaptive.size());
  std::size_t families = 0, better = 0, not_better = 0;
  std::vector<StudyNumber> by_level;
  for (const std::string_view family : kAdaptive) {
    std::vector<Comparison> comparisons;
    for (const StudyRow& row : rows) {
      if (row.group != "equal_bytes" || row.family != family || !row.usable()) continue;
      auto found = compare(row, fixed, options);
      if (!found) continue;
      StudyNumber number = ratio_number({*found}, options.bootstrap);
      number.name = fmt::format("KL over static's at {:.2f} bits", row.bits());
      number.recipe = row.measured.recipe;
      number.decides = false;
      by_level.push_back(std::move(number));
      comparisons.push_back(std::move(*found));
    }
    if (comparisons.empty()) continue;
    ++families;
    StudyNumber pooled = ratio_number(comparisons, strict);
    pooled.name =
        fmt::format("KL of {} over static's, mean of {} levels", family, comparisons.size());
    better += pooled.interval.high < 1.0;
    not_better += pooled.interval.low > 1.0 - options.tie;
    out.because += fmt::format("{}{} has {:.2f}x static's KL ({:.2f} .. {:.2f})",
                               out.because.empty() ? "on equal bytes " : ", ", family, pooled.value,
                               pooled.interval.low, pooled.interval.high);
    out.numbers.push_back(std::move(pooled));
  }
  if (families == 0) {
    out.because =
        "no adaptive recipe has been measured between two static ones of group equal_bytes";
    out.would_change = "measuring group equal_bytes";
    return out;
  }
  if (better > 0) out.outcome = Outcome::kHolds;
  if (not_better == families && families == kAdaptive.size()) out.outcome = Outcome::kRefuted;
  out.choose_change(
      "text on which none of them has less KL than static",
      fmt::format("one of them with at least {:.0f} % less KL than static", 100.0 * options.tie),
      "more text, or levels at which all three can be compared");
  out.numbers.insert(out.numbers.end(), by_level.begin(), by_level.end());
  add_equal_ranks(rows, options, out.numbers);
  return out;
}

}  // namespace kvspan
