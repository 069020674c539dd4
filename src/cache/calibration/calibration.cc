// SPDX-License-Identifier: Apache-2.0
#include "kvspan/calibration.h"

#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/expect.h"
#include "base/fail.h"
#include "cache/calibration/array_sizes.h"
#include "cache/calibration/rope_order.h"

namespace kvspan {
namespace {

// One array of a layer: `count` matrices of width^2 numbers where `matrix`, else count * width
// numbers.
struct Expected {
  std::string_view name;
  const std::vector<float>& numbers;
  std::size_t count, width;
  bool matrix;
  std::size_t size() const { return count * width * (matrix ? width : 1); }
};

Status check_array(int layer, const Expected& array) {
  if (array.numbers.size() != array.size()) {
    return fail(ErrorCode::kInvalidArgument,
                "calibration: layer {}: {} has {} numbers, the model's shape asks for {}", layer,
                array.name, array.numbers.size(), array.size());
  }
  for (std::size_t i = 0; i < array.numbers.size(); ++i) {
    if (!std::isfinite(array.numbers[i])) {
      return fail(ErrorCode::kInvalidArgument, "calibration: layer {}: {}[{}] is {}, not finite",
                  layer, array.name, i, array.numbers[i]);
    }
  }
  if (!array.matrix) return {};
  for (std::size_t m = 0; m < array.count; ++m) {
    for (std::size_t i = 0; i < array.width; ++i) {
      const std::size_t at = (m * array.width + i) * array.width + i;
      if (array.numbers[at] < 0.0f) {
        return fail(ErrorCode::kInvalidArgument,
                    "calibration: layer {}: {}[{}] is {}, negative on a diagonal", layer,
                    array.name, at, array.numbers[at]);
      }
    }
  }
  return {};
}

// Of layer `index` with the layers that follow it.
Status check_cross_moments(std::size_t index, const CacheShape& shape,
                           const Calibration& calibration, const LayerCalibration& layer) {
  const std::size_t wanted = following_layers(calibration.neighbours, index, shape.layers.size());
  const auto& arrays = layer.cross_moments;
  if (arrays.size() != wanted) {
    return fail(ErrorCode::kInvalidArgument,
                "calibration: layer {}: cross_moments has {} arrays; allowed with neighbours of {} "
                "in {} layers: {}",
                index, arrays.size(), calibration.neighbours, shape.layers.size(), wanted);
  }
  for (std::size_t j = 0; j < wanted; ++j) {
    const std::string name = fmt::format("cross_moments[{}]", j);
    KVSPAN_CHECK_OK(
        check_array(static_cast<int>(index), {name, arrays[j], joint_width(shape.layers[index]),
                                              joint_width(shape.layers[index + 1 + j]), false}));
  }
  return {};
}

Status check_arrays(std::size_t index, const CacheShape& all, const Calibration& calibration,
                    const LayerCalibration& layer) {
  const LayerShape& shape = all.layers[index];
  const std::size_t samples = calibration.sample_positions.size();
  const auto heads = static_cast<std::size_t>(shape.kv_heads);
  const auto dk = static_cast<std::size_t>(shape.key_dim);
  const auto dv = static_cast<std::size_t>(shape.value_dim);
  const std::size_t joint = joint_width(shape);
  const std::size_t residuals = kResidualRanks * kResidualPercentiles.size();
  const Expected arrays[] = {
      {"key_mean", layer.key_mean, heads, dk, false},
      {"value_mean", layer.value_mean, heads, dv, false},
      {"joint_moment", layer.joint_moment, 1, joint, true},
      {"rotated_key_mean", layer.rotated_key_mean, heads, dk, false},
      {"rotated_key_moment", layer.rotated_key_moment, 1, heads * dk, true},
      {"query_moment", layer.query_moment, heads, dk, true},
      {"raw_query_moment", layer.raw_query_moment, heads, dk, true},
      {"output_metric", layer.output_metric, heads, dv, true},
      {"key_metric", layer.key_metric, heads, dk, true},
      {"value_metric", layer.value_metric, heads, dv, true},
      {"sample_rows", layer.sample_rows, samples, joint, false},
      {"key_residuals", layer.key_residuals, heads, residuals, false},
      {"value_residuals", layer.value_residuals, heads, residuals, false},
  };
  for (const Expected& array : arrays) {
    KVSPAN_CHECK_OK(check_array(static_cast<int>(index), array));
  }
  return check_cross_moments(index, all, calibration, layer);
}

Status check_energy(int index, const LayerCalibration& layer) {
  if (!std::isfinite(layer.residual_energy) || layer.residual_energy < 0.0) {
    return fail(ErrorCode::kInvalidArgument,
                "calibration: layer {}: residual_energy is {}; allowed are finite numbers from 0",
                index, layer.residual_energy);
  }
  return {};
}

// Above 0 where layers have weights, else 0.
Status check_weight(int layer, std::string_view side, float weight, bool measured) {
  if (std::isfinite(weight) && (measured ? weight > 0.0f : weight == 0.0f)) return {};
  return fail(ErrorCode::kInvalidArgument,
              "calibration: layer {}: {}_weight is {}; allowed are finite numbers above 0 in all "
              "layers, or 0 in all",
              layer, side, weight);
}

Status check_rates(std::span<const RatePoint> rates) {
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const RatePoint& point = rates[i];
    const float below = i == 0 ? 0.0f : rates[i - 1].bits;
    if (!std::isfinite(point.bits) || point.bits <= below || !std::isfinite(point.kl) ||
        !std::isfinite(point.loss)) {
      return fail(ErrorCode::kInvalidArgument,
                  "calibration: rates[{}]: {} bits after {}, KL {}, loss {}; allowed are finite "
                  "numbers and rising bits",
                  i, point.bits, below, point.kl, point.loss);
    }
  }
  return {};
}

}  // namespace

bool has_layer_weights(const Calibration& calibration) noexcept {
  return !calibration.layers.empty() && calibration.layers.front().key_weight != 0.0f;
}

Status check_calibration(const CacheShape& shape, const Calibration& calibration) {
  if (calibration.layers.size() != shape.layers.size()) {
    return fail(ErrorCode::kInvalidArgument, "calibration: {} layers, the model has {}",
                calibration.layers.size(), shape.layers.size());
  }
  if (calibration.tokens < 1) {
    return fail(ErrorCode::kInvalidArgument, "calibration: {} tokens counted; it takes at least 1",
                calibration.tokens);
  }
  if (calibration.neighbours < 0) {
    return fail(ErrorCode::kInvalidArgument, "calibration: neighbours is {}; allowed: 0 or more",
                calibration.neighbours);
  }
  for (std::size_t i = 0; i < calibration.sample_positions.size(); ++i) {
    if (calibration.sample_positions[i] < 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "calibration: sample_positions[{}] is {}; positions start at 0", i,
                  calibration.sample_positions[i]);
    }
  }
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    const LayerCalibration& layer = calibration.layers[i];
    if (!calibration.read_layer) {
      KVSPAN_CHECK_OK(check_arrays(i, shape, calibration, layer));
    }
    KVSPAN_CHECK_OK(check_energy(static_cast<int>(i), layer));
    const bool measured = has_layer_weights(calibration);
    KVSPAN_CHECK_OK(check_weight(static_cast<int>(i), "key", layer.key_weight, measured));
    KVSPAN_CHECK_OK(check_weight(static_cast<int>(i), "value", layer.value_weight, measured));
  }
  KVSPAN_CHECK_OK(check_rates(calibration.rates));
  return check_ropes(shape, calibration);
}

Result<std::shared_ptr<const LayerCalibration>> layer_of(const CacheShape& shape,
                                                         const Calibration& calibration,
                                                         std::size_t layer) {
  KVSPAN_EXPECT(layer < shape.layers.size() && layer < calibration.layers.size(), "a layer");
  if (!calibration.read_layer) {
    return std::shared_ptr<const LayerCalibration>(std::shared_ptr<void>(),
                                                   &calibration.layers[layer]);
  }
  KVSPAN_TRY(LayerCalibration read, calibration.read_layer(layer));
  KVSPAN_CHECK_OK(check_arrays(layer, shape, calibration, read));
  return std::make_shared<const LayerCalibration>(std::move(read));
}

Result<Calibration> read_whole(const CacheShape& shape, const Calibration& calibration) {
  KVSPAN_CHECK_OK(check_calibration(shape, calibration));
  KVSPAN_TRY(const auto in_order, in_rope_order(shape, calibration));
  const Calibration& from = in_order ? *in_order : calibration;
  Calibration whole = from;
  if (!from.read_layer) return whole;
  whole.read_layer = nullptr;
  for (std::size_t i = 0; i < whole.layers.size(); ++i) {
    KVSPAN_TRY(const auto layer, layer_of(shape, from, i));
    whole.layers[i] = *layer;
  }
  return whole;
}

}  // namespace kvspan
