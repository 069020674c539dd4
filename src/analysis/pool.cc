// SPDX-License-Identifier: Apache-2.0
#include "analysis/pool.h"

#include "base/expect.h"

namespace kvspan {
namespace {

using Numbers = std::vector<float>;

// What is an average over tokens.
constexpr Numbers LayerCalibration::*kAverages[] = {
    &LayerCalibration::key_mean,           &LayerCalibration::value_mean,
    &LayerCalibration::joint_moment,       &LayerCalibration::rotated_key_mean,
    &LayerCalibration::rotated_key_moment, &LayerCalibration::query_moment,
    &LayerCalibration::raw_query_moment};

// sum_p factor(p) * (part p's numbers)
template <class Factor>
Numbers weighted(std::span<const Calibration> parts, std::size_t layer,
                 Numbers LayerCalibration::*which, Factor factor) {
  std::vector<double> sum((parts.front().layers[layer].*which).size());
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Numbers& from = parts[p].layers[layer].*which;
    KVSPAN_EXPECT(from.size() == sum.size(), "calibrations of one model");
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += factor(p) * from[i];
  }
  return Numbers(sum.begin(), sum.end());
}

}  // namespace

Calibration pool_calibrations(std::span<const Calibration> parts) {
  KVSPAN_EXPECT(!parts.empty(), "a calibration");
  Calibration out = parts.front();
  if (parts.size() == 1) return out;
  out.tokens = 0;
  for (const Calibration& part : parts) out.tokens += part.tokens;
  const auto weight = [&](std::size_t p) {
    return static_cast<double>(parts[p].tokens) / static_cast<double>(out.tokens);
  };
  for (std::size_t i = 0; i < out.layers.size(); ++i) {
    LayerCalibration& layer = out.layers[i];
    for (const auto which : kAverages) layer.*which = weighted(parts, i, which, weight);
    layer.residual_energy = 0.0;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      layer.residual_energy += weight(p) * parts[p].layers[i].residual_energy;
    }
    // Metrics are averages over tokens divided by E|x|^2.
    for (const auto which : {&LayerCalibration::output_metric, &LayerCalibration::key_metric, &LayerCalibration::value_metric}) {
      layer.*which = weighted(parts, i, which, [&](std::size_t p) {
        return weight(p) * parts[p].layers[i].residual_energy / layer.residual_energy;
      });
    }
  }
  return out;
}

}  // namespace kvspan
