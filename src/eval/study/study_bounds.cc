// SPDX-License-Identifier: Apache-2.0
// F4: do certificates and FD's Delta predict the error?
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "eval/study/rank_statistics.h"
#include "eval/study/study_verdicts.h"

namespace kvspan {
namespace {

using Outcome = StudyVerdict::Outcome;

struct Predictor {
  std::string_view name;
  bool is_bound;  // never to be below the error
  std::optional<double> (*predicted)(const TrackedStep&);
  double (*error)(const TrackedStep&);
};

double logit_error(const TrackedStep& s) {
  return s.logit_error;
}
double output_error(const TrackedStep& s) {
  return s.output_error;
}
template <double Certificate::*Member>
std::optional<double> bound(const TrackedStep& s) {
  return s.bound ? std::optional((*s.bound).*Member) : std::nullopt;
}
std::optional<double> key_delta(const TrackedStep& s) {
  return s.key_delta;
}
std::optional<double> value_delta(const TrackedStep& s) {
  return s.value_delta;
}

constexpr std::array kPredictors{
    Predictor{"logit bound", true, bound<&Certificate::logits>, logit_error},
    Predictor{"output bound", true, bound<&Certificate::output>, output_error},
    Predictor{"Delta of keys", false, key_delta, logit_error},
    Predictor{"Delta of values", false, value_delta, output_error},
};

// Pairs of one recipe and predictor. Layers of one step see the same text: steps are what is drawn.
struct Pairs {
  std::map<std::int32_t, std::vector<std::pair<double, double>>> by_position;
  std::size_t count = 0, below = 0;
};

Pairs pairs_of(std::span<const StudySample> samples, const std::string& recipe,
               const Predictor& predictor) {
  Pairs out;
  for (const StudySample& sample : samples) {
    if (sample.recipe != recipe) continue;
    const auto predicted = predictor.predicted(sample.step);
    if (!predicted) continue;
    const double error = predictor.error(sample.step);
    // Before anything is coded there is nothing to predict.
    if (*predicted == 0.0 && error == 0.0) continue;
    out.by_position[sample.step.position].emplace_back(*predicted, error);
    ++out.count;
    out.below += predictor.is_bound && *predicted < error;
  }
  return out;
}

StudyNumber correlation(const Pairs& pairs, const BootstrapOptions& bootstrap) {
  std::vector<const std::vector<std::pair<double, double>>*> steps;
  for (const auto& [position, found] : pairs.by_position) steps.push_back(&found);
  const auto statistic = [&](std::span<const std::uint32_t> drawn) {
    std::vector<double> predicted, error;
    for (const std::uint32_t i : drawn) {
      for (const auto& [p, e] : *steps[i]) {
        predicted.push_back(p);
        error.push_back(e);
      }
    }
    return spearman(predicted, error);
  };
  std::vector<std::uint32_t> all(steps.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint32_t>(i);
  StudyNumber out;
  out.value = statistic(all);
  out.interval = bootstrap_cases(steps.size(), statistic, bootstrap);
  out.confidence = bootstrap.confidence;
  out.unit = "spearman";
  out.n = pairs.count;
  return out;
}

StudyNumber violations(std::size_t below, std::size_t bounds) {
  StudyNumber out;
  out.name = "bounds below the error";
  out.value = static_cast<double>(below);
  out.interval = {out.value, out.value};
  out.confidence = 1.0;
  out.unit = "count";
  out.threshold = 0.0;
  out.n = bounds;
  return out;
}

}  // namespace

StudyVerdict judge_bounds(std::span<const StudySample> samples, const VerdictOptions& options) {
  StudyVerdict out;
  out.id = "F4";
  out.claim = "certificates and FD's Delta predict the error";
  out.falsifier = "certificates and FD's Delta do not predict observed error";
  std::vector<std::string> recipes;
  for (const StudySample& sample : samples) {
    if (std::find(recipes.begin(), recipes.end(), sample.recipe) == recipes.end()) {
      recipes.push_back(sample.recipe);
    }
  }
  std::size_t below = 0, bounds = 0, asked = 0, predict = 0, do_not = 0;
  std::string failing;
  double least = 2.0;
  for (const std::string& recipe : recipes) {
    for (const Predictor& predictor : kPredictors) {
      const Pairs pairs = pairs_of(samples, recipe, predictor);
      if (pairs.by_position.size() < 2) continue;
      StudyNumber number = correlation(pairs, options.bootstrap);
      number.name = fmt::format("{} against error", predictor.name);
      number.recipe = recipe;
      number.threshold = options.strong;
      ++asked;
      predict += number.interval.low >= options.strong;
      // A predictor that does not vary (NaN) predicts nothing.
      const bool fails = !(number.interval.high >= options.strong);
      do_not += fails;
      if (fails) {
        failing += fmt::format("{}{} of {} ({:.2f})", failing.empty() ? "" : ", ", predictor.name,
                               recipe, number.value);
      }
      if (!std::isnan(number.value)) least = std::min(least, number.value);
      below += pairs.below;
      if (predictor.is_bound) bounds += pairs.count;
      out.numbers.push_back(std::move(number));
    }
  }
  if (asked == 0) {
    out.because = "no errors have been tracked beside bounds";
    out.would_change = "tracking";
    return out;
  }
  out.numbers.push_back(violations(below, bounds));
  if (predict == asked) out.outcome = Outcome::kHolds;
  if (do_not > 0 || below > 0) out.outcome = Outcome::kRefuted;
  out.because = fmt::format(
      "{} of {} bounds are below the error; {} of {} predictors have a rank "
      "correlation with it of at least {}",
      below, bounds, predict, asked, options.strong);
  out.because += failing.empty() ? fmt::format(" (the least is {:.2f})", least)
                                 : "; below that are " + failing;
  out.choose_change("one bound below its error, or a correlation below that",
                    "correlations of all predictors above that, and no bound below",
                    "more steps: intervals that lie on one side of it");
  return out;
}

}  // namespace kvspan
