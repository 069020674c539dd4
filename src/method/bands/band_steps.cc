// SPDX-License-Identifier: Apache-2.0
#include "method/bands/band_steps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "codec/bands/midrise.h"
#include "codec/bands/trellis.h"

namespace kvspan {
namespace {

// Of the step for a Gaussian: larger ones reach the tails that others have.
constexpr std::array<double, 7> kSizes{0.9, 1.0, 1.12, 1.25, 1.5, 1.8, 2.2};
constexpr std::size_t kMostStepSamples = 1024;

// Of components that do not follow the trellis.
std::vector<float> uniform_steps(const Matrix& samples, const BandsLayout& layout) {
  std::vector<float> steps(layout.stored()), column(samples.rows());
  for (std::size_t p = 0; p < steps.size(); ++p) {
    if (layout.chained(layout.width(p))) continue;
    for (std::size_t s = 0; s < column.size(); ++s) column[s] = samples(s, p);
    steps[p] = static_cast<float>(fit_midrise(column, layout.width(p)).step);
  }
  return steps;
}

// Root mean square of each component.
std::vector<double> spreads(const Matrix& samples, std::size_t stored) {
  std::vector<double> spread(stored);
  for (std::size_t s = 0; s < samples.rows(); ++s) {
    for (std::size_t p = 0; p < stored; ++p) {
      spread[p] += double{samples(s, p)} * double{samples(s, p)};
    }
  }
  for (double& x : spread) x = std::sqrt(x / static_cast<double>(samples.rows()));
  return spread;
}

// Squared error of each component over the samples, all coded with these steps.
std::vector<double> trellis_errors(const Matrix& samples, const BandsLayout& layout,
                                   const std::vector<float>& steps) {
  const std::size_t places = layout.quads() * kBandQuad, stored = layout.stored();
  const std::size_t stride = (samples.rows() + kMostStepSamples - 1) / kMostStepSamples;
  std::vector<float> x(places), weights(places);
  std::vector<std::int8_t> codes(places), values(places);
  std::vector<double> errors(stored);
  for (std::size_t p = 0; p < stored; ++p) weights[p] = steps[p] * steps[p];
  TrellisEncoder encoder;
  for (std::size_t s = 0; s < samples.rows(); s += stride) {
    for (std::size_t p = 0; p < stored; ++p) x[p] = samples(s, p) / steps[p];
    encoder.encode(layout.quad_widths(), x.data(), weights.data(), codes.data(), values.data());
    for (std::size_t p = 0; p < stored; ++p) {
      const double off = double{steps[p]} * (double{x[p]} - values[p] - 0.5);
      errors[p] += off * off;
    }
  }
  return errors;
}

// Of those that are not nothing but zeros, the others have any.
std::vector<float> fitted_steps(const Matrix& samples, const BandsLayout& layout,
                                const std::vector<double>& spread) {
  std::vector<float> best = uniform_steps(samples, layout);
  if (layout.quantizer() == BandsQuantizer::kUniform) return best;
  std::vector<double> least(best.size(), std::numeric_limits<double>::infinity());
  for (const double size : kSizes) {
    std::vector<float> steps = best;
    for (std::size_t p = 0; p < steps.size(); ++p) {
      if (!layout.chained(layout.width(p))) continue;
      steps[p] = static_cast<float>(size * (spread[p] > 0.0 ? spread[p] : 1.0) /
                                    trellis_units(layout.width(p)));
    }
    const std::vector<double> errors = trellis_errors(samples, layout, steps);
    for (std::size_t p = 0; p < steps.size(); ++p) {
      if (!layout.chained(layout.width(p)) || errors[p] >= least[p]) continue;
      least[p] = errors[p];
      best[p] = steps[p];
    }
  }
  return best;
}

}  // namespace

std::vector<float> fit_band_steps(const Matrix& samples, const BandsLayout& layout) {
  const std::vector<double> spread = spreads(samples, layout.stored());
  std::vector<float> steps = fitted_steps(samples, layout, spread);
  float least = std::numeric_limits<float>::infinity();
  for (std::size_t p = 0; p < steps.size(); ++p) {
    if (spread[p] > 0.0) least = std::min(least, steps[p]);
  }
  for (std::size_t p = 0; p < steps.size() && std::isfinite(least); ++p) {
    if (spread[p] == 0.0) steps[p] = least;
  }
  return steps;
}

}  // namespace kvspan
