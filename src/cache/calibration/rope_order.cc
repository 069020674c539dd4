// SPDX-License-Identifier: Apache-2.0
#include "cache/calibration/rope_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "cache/calibration/array_sizes.h"
#include "cache/rope.h"

namespace kvspan {
namespace {

using Pairs = Rope::Pairs;

constexpr double kRounding = 1e-4;  // of angles that engines compute in f32, one from the other
// Sums of pairs in f32 moments are that close, and those of other pairs are further off by far.
constexpr double kSamePairs = 1e-2, kOtherPairs = 10.0;

bool same(double a, double b) {
  return std::abs(a - b) <= kRounding * std::max(std::abs(a), std::abs(b));
}

Pairs other(Pairs pairs) {
  return pairs == Pairs::kHalves ? Pairs::kNeighbours : Pairs::kHalves;
}

bool is_rotated(const LayerShape& layer) {
  return layer.rope.rotated_dims > 2;  // a single pair has one order
}

// How far the sums of pairs of rotated keys are from those of keys before RoPE, relative to all.
double misfit(const LayerShape& shape, Pairs pairs, const LayerCalibration& layer) {
  Rope rope = shape.rope;
  rope.pairs = pairs;
  const auto dk = static_cast<std::size_t>(shape.key_dim);
  const std::size_t width = static_cast<std::size_t>(shape.kv_heads) * dk;
  const auto sums = [&](const std::vector<float>& moment, std::size_t stride) {
    std::vector<double> of;
    for (std::size_t head = 0; head < width; head += dk) {
      for (std::size_t i = 0; i < rope.angles.size(); ++i) {
        const auto [first, second] = rope_pair(rope, i);
        of.push_back(double{moment[(head + first) * (stride + 1)]} +
                     double{moment[(head + second) * (stride + 1)]});
      }
    }
    return of;
  };
  const std::vector<double> raw = sums(layer.joint_moment, joint_width(shape)),
                            rotated = sums(layer.rotated_key_moment, width);
  const double raw_total = std::reduce(raw.begin(), raw.end()),
               rotated_total = std::reduce(rotated.begin(), rotated.end());
  double off = 0.0;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    off += std::abs(raw[i] / raw_total - rotated[i] / rotated_total);
  }
  return off;
}

// Whether arrays that do not say their order have the other one.
Result<bool> shows_other_order(const CacheShape& shape, const Calibration& calibration) {
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    const LayerShape& layer = shape.layers[i];
    if (!is_rotated(layer)) continue;
    KVSPAN_TRY(const auto numbers, layer_of(shape, calibration, i));
    const double own = misfit(layer, layer.rope.pairs, *numbers),
                 others = misfit(layer, other(layer.rope.pairs), *numbers);
    if (own <= kSamePairs && kOtherPairs * own < others) return false;
    if (others <= kSamePairs && kOtherPairs * others < own) return true;
  }
  return false;
}

// Which layers have another order than the shape's.
Result<std::vector<bool>> layers_to_convert(const CacheShape& shape,
                                            const Calibration& calibration) {
  std::vector<bool> converts;
  const bool says = !calibration.ropes.empty();
  bool shown = false;
  if (!says) {
    KVSPAN_TRY(shown, shows_other_order(shape, calibration));
  }
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    const LayerShape& layer = shape.layers[i];
    const bool differs = says ? calibration.ropes[i].pairs != layer.rope.pairs : shown;
    converts.push_back(differs && is_rotated(layer));
  }
  return converts;
}

// By place in the shape's order, the place in the calibration's: of the keys of all heads, of z, and
// of one head.
struct Places {
  std::vector<std::size_t> head, keys, joint;
};

Places places_of(const LayerShape& shape, bool converts) {
  Places places;
  places.head.resize(static_cast<std::size_t>(shape.key_dim));
  std::iota(places.head.begin(), places.head.end(), std::size_t{0});
  if (converts) {
    Rope from = shape.rope;
    from.pairs = other(from.pairs);
    for (std::size_t i = 0; i < from.angles.size(); ++i) {
      const auto to = rope_pair(shape.rope, i), at = rope_pair(from, i);
      places.head[to.first] = at.first;
      places.head[to.second] = at.second;
    }
  }
  for (std::size_t h = 0; h < static_cast<std::size_t>(shape.kv_heads); ++h) {
    for (const std::size_t place : places.head) {
      places.keys.push_back(h * places.head.size() + place);
    }
  }
  places.joint = places.keys;
  while (places.joint.size() < joint_width(shape)) places.joint.push_back(places.joint.size());
  return places;
}

// Of [matrices][rows][columns], rows and columns from other places.
void convert(std::size_t matrices, std::span<const std::size_t> rows,
             std::span<const std::size_t> columns, std::vector<float>& numbers) {
  const std::vector<float> from = numbers;
  auto to = numbers.begin();
  for (std::size_t m = 0; m < matrices; ++m) {
    for (const std::size_t row : rows) {
      const float* at = from.data() + (m * rows.size() + row) * columns.size();
      for (const std::size_t column : columns) *to++ = at[column];
    }
  }
}

LayerCalibration converted(const CacheShape& shape, const std::vector<bool>& converts,
                           std::size_t index, LayerCalibration layer) {
  constexpr std::size_t kOne[] = {0};
  const auto heads = static_cast<std::size_t>(shape.layers[index].kv_heads);
  const Places own = places_of(shape.layers[index], converts[index]);
  convert(1, kOne, own.keys, layer.key_mean);
  convert(1, kOne, own.keys, layer.rotated_key_mean);
  convert(1, own.joint, own.joint, layer.joint_moment);
  convert(1, own.keys, own.keys, layer.rotated_key_moment);
  for (auto* metric : {&layer.query_moment, &layer.raw_query_moment, &layer.key_metric}) {
    convert(heads, own.head, own.head, *metric);
  }
  convert(layer.sample_rows.size() / own.joint.size(), kOne, own.joint, layer.sample_rows);
  for (std::size_t j = 0; j < layer.cross_moments.size(); ++j) {
    const std::size_t next = index + 1 + j;
    convert(1, own.joint, places_of(shape.layers[next], converts[next]).joint,
            layer.cross_moments[j]);
  }
  return layer;
}

}  // namespace

Status check_ropes(const CacheShape& shape, const Calibration& calibration) {
  if (calibration.ropes.empty()) return {};
  if (calibration.ropes.size() != shape.layers.size()) {
    return fail(ErrorCode::kInvalidArgument, "calibration: RoPE of {} layers, the model has {}",
                calibration.ropes.size(), shape.layers.size());
  }
  for (std::size_t l = 0; l < shape.layers.size(); ++l) {
    const Rope &made = calibration.ropes[l], &wanted = shape.layers[l].rope;
    const auto differs = [&](std::string_view what, auto of_calibration, auto of_model) {
      return fail(ErrorCode::kInvalidArgument,
                  "calibration: layer {}: made with a RoPE of {} {}, the model's is {}; supported: "
                  "a calibration made with the model's RoPE, as `kvspan calibrate` makes it",
                  l, what, of_calibration, of_model);
    };
    if (made.rotated_dims != wanted.rotated_dims || made.angles.size() != wanted.angles.size()) {
      return differs("dimensions", made.rotated_dims, wanted.rotated_dims);
    }
    for (std::size_t i = 0; i < made.angles.size(); ++i) {
      if (same(made.angles[i], wanted.angles[i])) continue;
      return differs(fmt::format("angle {}", i), made.angles[i], wanted.angles[i]);
    }
    if (made.angles.empty() || same(made.magnitude, wanted.magnitude)) continue;
    return differs("magnitude", made.magnitude, wanted.magnitude);
  }
  return {};
}

Result<std::optional<Calibration>> in_rope_order(const CacheShape& shape,
                                                 const Calibration& calibration) {
  KVSPAN_TRY(const std::vector<bool> converts, layers_to_convert(shape, calibration));
  if (std::find(converts.begin(), converts.end(), true) == converts.end()) {
    return std::optional<Calibration>();
  }
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    if (!shape.layers[i].rope.angles.empty()) continue;
    return fail(ErrorCode::kUnsupported,
                "calibration: pairs of other layers are in another order than the model's, and "
                "layer {} has no RoPE that tells the order of its keys; supported: a calibration "
                "made in the model's order",
                i);
  }
  Calibration in_order;
  in_order.model = calibration.model;
  in_order.fingerprint = calibration.fingerprint;
  in_order.tokens = calibration.tokens;
  in_order.window = calibration.window;
  in_order.skip = calibration.skip;
  in_order.neighbours = calibration.neighbours;
  in_order.sample_positions = calibration.sample_positions;
  in_order.rates = calibration.rates;
  in_order.source = calibration.source;
  in_order.checksum = calibration.checksum;
  for (std::size_t i = 0; i < calibration.layers.size(); ++i) {
    LayerCalibration& layer = in_order.layers.emplace_back();
    layer.residual_energy = calibration.layers[i].residual_energy;
    layer.key_weight = calibration.layers[i].key_weight;
    layer.value_weight = calibration.layers[i].value_weight;
    in_order.ropes.push_back(shape.layers[i].rope);
  }
  in_order.read_layer = [&calibration, shape,
                         converts](std::size_t index) -> Result<LayerCalibration> {
    KVSPAN_TRY(const auto layer, layer_of(shape, calibration, index));
    return converted(shape, converts, index, *layer);
  };
  return std::optional(std::move(in_order));
}

}  // namespace kvspan
