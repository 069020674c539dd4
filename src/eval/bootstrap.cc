// SPDX-License-Identifier: Apache-2.0
#include "eval/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/expect.h"
#include "base/random.h"
#include "eval/bench/bench.h"

namespace kvspan {
namespace {

bool is_binary(std::span<const Measured> rows) {
  return std::all_of(rows.begin(), rows.end(), [](const Measured& row) {
    return (row.value == 0.0 || row.value == 1.0) && row.weight == 1.0;
  });
}

// Calls `found` with `count` drawn indices, as often as asked for.
template <class Found>
void draw(std::size_t count, const BootstrapOptions& options, const Found& found) {
  Random random(options.seed);
  std::vector<std::uint32_t> drawn(count);
  for (int r = 0; r < options.resamples; ++r) {
    for (std::uint32_t& row : drawn) row = random.below(static_cast<std::uint32_t>(count));
    found(std::span<const std::uint32_t>(drawn));
  }
}

// Means of `sets`, all of one size, over the same drawn rows; calls `found` with them.
template <class Found>
void resample(std::span<const std::span<const Measured>> sets, const BootstrapOptions& options,
              const Found& found) {
  std::vector<double> sums(sets.size()), weights(sets.size()), means(sets.size());
  draw(sets.front().size(), options, [&](std::span<const std::uint32_t> drawn) {
    std::fill(sums.begin(), sums.end(), 0.0);
    std::fill(weights.begin(), weights.end(), 0.0);
    for (const std::uint32_t row : drawn) {
      for (std::size_t s = 0; s < sets.size(); ++s) {
        sums[s] += sets[s][row].weight * sets[s][row].value;
        weights[s] += sets[s][row].weight;
      }
    }
    for (std::size_t s = 0; s < sets.size(); ++s) means[s] = sums[s] / weights[s];
    found(means);
  });
}

Interval percentiles(const std::vector<double>& values, double confidence) {
  const double tail = (1.0 - confidence) / 2.0;
  return {quantile(values, tail), quantile(values, 1.0 - tail)};
}

}  // namespace

double weighted_mean(std::span<const Measured> rows) noexcept {
  double sum = 0.0, weight = 0.0;
  for (const Measured& row : rows) {
    sum += row.weight * row.value;
    weight += row.weight;
  }
  return weight > 0.0 ? sum / weight : 0.0;
}

Interval bootstrap_interval(std::span<const Measured> rows, const BootstrapOptions& options) {
  if (rows.empty()) return {};
  std::vector<double> means;
  resample(std::vector{rows}, options,
           [&](const std::vector<double>& found) { means.push_back(found[0]); });
  return percentiles(means, options.confidence);
}

Interval bootstrap_cases(std::size_t count,
                         const std::function<double(std::span<const std::uint32_t>)>& statistic,
                         const BootstrapOptions& options) {
  std::vector<double> found;
  if (count > 0) {
    draw(count, options, [&](std::span<const std::uint32_t> drawn) {
      if (const double value = statistic(drawn); !std::isnan(value)) found.push_back(value);
    });
  }
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  return found.empty() ? Interval{kUnknown, kUnknown} : percentiles(found, options.confidence);
}

PairedDifference paired_difference(std::span<const Measured> reference,
                                   std::span<const Measured> other,
                                   const BootstrapOptions& options) {
  KVSPAN_EXPECT(reference.size() == other.size(), "the same rows");
  PairedDifference out;
  if (reference.empty()) return out;
  out.difference = weighted_mean(other) - weighted_mean(reference);
  std::vector<double> differences;
  resample(std::vector{reference, other}, options,
           [&](const std::vector<double>& means) { differences.push_back(means[1] - means[0]); });
  std::size_t gained = 0, lost = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    gained += other[i].value > reference[i].value;
    lost += other[i].value < reference[i].value;
  }
  out.interval = percentiles(differences, options.confidence);
  if (gained + lost == 0) return out;
  if (is_binary(reference) && is_binary(other)) {
    out.p = mcnemar_exact(gained, lost);
    return out;
  }
  std::size_t below = 0, above = 0;
  for (const double d : differences) {
    below += d <= 0.0;
    above += d >= 0.0;
  }
  // One more than counted, on both sides of the fraction: a p of 0 is not known from resampling.
  out.p = std::min(1.0, 2.0 * static_cast<double>(std::min(below, above) + 1) /
                            static_cast<double>(differences.size() + 1));
  return out;
}

double mcnemar_exact(std::size_t gained, std::size_t lost) noexcept {
  const auto n = static_cast<double>(gained + lost);
  const std::size_t fewer = std::min(gained, lost);
  double tail = 0.0;
  for (std::size_t i = 0; i <= fewer; ++i) {
    const auto k = static_cast<double>(i);
    tail += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) -
                     n * std::log(2.0));
  }
  return std::min(1.0, 2.0 * tail);
}

}  // namespace kvspan
