// SPDX-License-Identifier: Apache-2.0
// How sure a mean over rows is, and whether two recipes differ on the same rows. Resampling is
// seeded: the same rows and seed give the same interval.
// Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993; McNemar, 1947.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kvspan {

// What one row contributes to a weighted mean.
struct Measured {
  double value = 0.0;
  double weight = 1.0;  // > 0
};

struct Interval {
  double low = 0.0, high = 0.0;
};

struct BootstrapOptions {
  std::uint64_t seed = 0;
  int resamples = 2000;
  double confidence = 0.95;
};

// Sum of weight * value over the sum of weights; 0 without rows.
double weighted_mean(std::span<const Measured> rows) noexcept;

// Percentile interval of weighted_mean over rows drawn with replacement. O(rows * resamples).
Interval bootstrap_interval(std::span<const Measured> rows, const BootstrapOptions& options);

// Percentile interval of a statistic of cases, of which `count` are drawn with replacement: it gets
// their indices. Draws that it answers with NaN do not count; without any the interval is NaN.
Interval bootstrap_cases(std::size_t count,
                         const std::function<double(std::span<const std::uint32_t>)>& statistic,
                         const BootstrapOptions& options);

// `other` less `reference` on the same rows, in order.
struct PairedDifference {
  double difference = 0.0;
  Interval interval;  // rows are drawn in pairs
  // Two-sided: McNemar's exact test where every value is 0 or 1 of equal weight, else twice the
  // share of resampled differences on the rarer side of 0. 1 where no row differs.
  double p = 1.0;
};
PairedDifference paired_difference(std::span<const Measured> reference,
                                   std::span<const Measured> other,
                                   const BootstrapOptions& options);

// Probability, both kinds of change being equally likely, of a split at least as uneven as this
// one.
double mcnemar_exact(std::size_t gained, std::size_t lost) noexcept;

}  // namespace kvspan
