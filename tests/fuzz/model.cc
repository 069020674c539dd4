// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/half.h"
#include "base/random.h"
#include "cache/rope.h"

namespace kvspan::fuzz {
namespace {

constexpr std::size_t kDirections = 6;
constexpr std::int32_t kCalibrationTokens = 96;

std::uint64_t mixed(std::initializer_list<std::uint64_t> numbers) {
  std::uint64_t hash = 0;
  for (const std::uint64_t number : numbers) hash = (hash ^ number) * 0x9e3779b97f4a7c15ull + (hash >> 29);
  return hash;
}

Rope rope_of(std::int32_t dims, Rope::Pairs pairs) {
  Rope rope;
  rope.pairs = pairs;
  rope.rotated_dims = dims;
  for (std::int32_t i = 0; i < dims / 2; ++i) rope.angles.push_back(std::pow(10000.0, -2.0 * i / dims));
  return rope;
}

LayerShape choose_layer(Input& input) {
  LayerShape layer;
  layer.key_dim = input.of({16, 8, 32, 4, 12, 20, 24, 40, 48, 64, 80, 96, 128, 256});
  layer.kv_heads = layer.key_dim > 64 ? 1 : input.of({1, 2, 3});
  layer.query_heads = layer.kv_heads * input.of({1, 2, 3, 4, 7});
  layer.value_dim = input.one_in(4) ? input.of({8, 16, 32, 64}) : layer.key_dim;
  const std::int32_t rotated = input.of({1, 0, 2});  // all, none, half of the dimensions
  if (rotated != 0) {
    layer.rope = rope_of(rotated == 1 ? layer.key_dim : layer.key_dim / 4 * 2,
                         input.one_in(2) ? Rope::Pairs::kHalves : Rope::Pairs::kNeighbours);
    if (input.one_in(6)) layer.rope.magnitude = 1.3f;
  }
  layer.logit_scale = 1.0f / std::sqrt(static_cast<float>(layer.key_dim));
  if (input.one_in(5)) layer.soft_cap = input.of({5.0f, 30.0f, 50.0f});
  const std::int32_t seen = input.below(6);
  if (seen >= 4) layer.window = input.of({40, 1, 2, 3, 8, 16, 31, 32, 33, 64, 100, 128, 200, 256});
  if (seen == 3 || seen == 5) layer.chunk = input.of({64, 1, 2, 8, 16, 33, 100, 128, 256});
  if (input.one_in(6)) {
    for (std::int32_t h = 1; h <= layer.query_heads; ++h) {
      layer.alibi.push_back(std::exp2(-8.0f * static_cast<float>(h) / static_cast<float>(layer.query_heads)));
    }
  }
  if (input.one_in(5)) {
    for (std::int32_t h = 0; h < layer.query_heads; ++h) {
      layer.sinks.push_back(static_cast<float>(input.between(-4, 4)));
    }
  }
  return layer;
}

// E[a b'] over n rows.
std::vector<float> moment(const std::vector<float>& a, const std::vector<float>& b, std::size_t n) {
  const std::size_t rows = a.size() / n, columns = b.size() / n;
  std::vector<float> out(rows * columns, 0.0f);
  for (std::size_t t = 0; t < n; ++t) {
    for (std::size_t i = 0; i < rows; ++i) {
      const float left = a[t * rows + i] / static_cast<float>(n);
      for (std::size_t j = 0; j < columns; ++j) out[i * columns + j] += left * b[t * columns + j];
    }
  }
  return out;
}

std::vector<float> mean(const std::vector<float>& rows, std::size_t n) {
  return moment(std::vector<float>(n, 1.0f), rows, n);
}

std::vector<std::int32_t> first_positions(std::int32_t n) {
  std::vector<std::int32_t> positions(static_cast<std::size_t>(n));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

}  // namespace

CacheShape choose_shape(Input& input) {
  CacheShape shape;
  const std::int32_t layers = input.of({2, 1, 3});
  const std::int32_t alike = input.below(4);  // 0, 1: all layers; 2: but for windows; 3: none
  for (std::int32_t i = 0; i < layers; ++i) {
    LayerShape layer = i == 0 || alike == 3 ? choose_layer(input) : shape.layers.front();
    if (i > 0 && alike == 2) {
      if (input.one_in(2)) layer.window = 0;
      if (input.one_in(2)) layer.chunk = 0;
    }
    shape.layers.push_back(std::move(layer));
  }
  return shape;
}

CacheShape small_shape(std::int32_t dim, std::int32_t window) {
  CacheShape shape;
  for (std::int32_t i = 0; i < 2; ++i) {
    LayerShape layer;
    layer.query_heads = 4;
    layer.kv_heads = 2;
    layer.key_dim = layer.value_dim = dim;
    layer.rope = rope_of(dim, Rope::Pairs::kNeighbours);
    layer.logit_scale = 1.0f / std::sqrt(static_cast<float>(dim));
    if (i == 1) layer.window = window;
    shape.layers.push_back(std::move(layer));
  }
  return shape;
}

Model::Model(CacheShape shape, std::uint64_t seed) : shape_(std::move(shape)), seed_(seed) {
  Random random(seed);
  const auto source = [&](std::int32_t heads, std::int32_t dim) {
    Source out{heads, dim, {}, {}};
    const auto numbers = static_cast<std::size_t>(heads * dim);
    for (std::size_t i = 0; i < numbers; ++i) out.mean.push_back(0.5f * static_cast<float>(random.normal()));
    for (std::size_t i = 0; i < kDirections * numbers; ++i) {
      out.directions.push_back(2.0f * static_cast<float>(random.normal()) / std::sqrt(static_cast<float>(dim)));
    }
    return out;
  };
  for (const LayerShape& layer : shape_.layers) {
    layers_.push_back({source(layer.kv_heads, layer.key_dim), source(layer.kv_heads, layer.value_dim),
                       source(layer.query_heads, layer.key_dim)});
  }
}

std::vector<float> Model::rows(const Source& of, Side side, std::size_t layer,
                               std::span<const std::int32_t> positions, std::uint64_t text) const {
  const auto heads = static_cast<std::size_t>(of.heads), dim = static_cast<std::size_t>(of.dim);
  std::vector<float> out;
  out.reserve(positions.size() * heads * dim);
  for (const std::int32_t position : positions) {
    Random random(mixed({seed_, text, layer, static_cast<std::uint64_t>(position), static_cast<std::uint64_t>(side)}));
    const bool massive = side == Side::kValues && (position == 0 || random.below(60) == 0);
    for (std::size_t h = 0; h < heads; ++h) {
      float weights[kDirections];
      for (std::size_t k = 0; k < kDirections; ++k) {
        weights[k] = static_cast<float>(random.normal() * std::pow(0.7, static_cast<double>(k)));
      }
      for (std::size_t j = 0; j < dim; ++j) {
        float number = of.mean[h * dim + j] + 0.05f * static_cast<float>(random.uniform() - 0.5);
        for (std::size_t k = 0; k < kDirections; ++k) number += weights[k] * of.directions[(h * kDirections + k) * dim + j];
        out.push_back(massive ? 0.01f : number);
      }
    }
  }
  return out;
}

void Model::rotate(std::size_t layer, std::int32_t heads, std::span<const std::int32_t> positions,
                   std::vector<float>& rows) const {
  float* row = rows.data();
  for (const std::int32_t position : positions) {
    for (std::int32_t h = 0; h < heads; ++h, row += shape_.layers[layer].key_dim) {
      rope_rotate(shape_.layers[layer].rope, position, row);
    }
  }
}

std::vector<float> Model::keys(std::size_t layer, std::span<const std::int32_t> positions, std::uint64_t text) const {
  std::vector<float> out = rows(layers_[layer].keys, Side::kKeys, layer, positions, text);
  rotate(layer, layers_[layer].keys.heads, positions, out);
  return out;
}

std::vector<float> Model::values(std::size_t layer, std::span<const std::int32_t> positions, std::uint64_t text) const {
  return rows(layers_[layer].values, Side::kValues, layer, positions, text);
}

std::vector<float> Model::queries(std::size_t layer, std::span<const std::int32_t> positions) const {
  std::vector<float> out = rows(layers_[layer].queries, Side::kQueries, layer, positions, 0);
  rotate(layer, layers_[layer].queries.heads, positions, out);
  return out;
}

std::vector<float> Model::joined(std::size_t layer, std::span<const std::int32_t> positions) const {
  const std::vector<float> keys = rows(layers_[layer].keys, Side::kKeys, layer, positions, 0);
  const std::vector<float> values = rows(layers_[layer].values, Side::kValues, layer, positions, 0);
  const std::size_t k = keys.size() / positions.size(), v = values.size() / positions.size();
  std::vector<float> out;
  for (std::size_t t = 0; t < positions.size(); ++t) {
    out.insert(out.end(), keys.begin() + std::ptrdiff_t(t * k), keys.begin() + std::ptrdiff_t((t + 1) * k));
    out.insert(out.end(), values.begin() + std::ptrdiff_t(t * v), values.begin() + std::ptrdiff_t((t + 1) * v));
  }
  return out;
}

LayerCalibration Model::calibrate(std::size_t layer, std::span<const std::int32_t> positions,
                                  std::span<const std::int32_t> samples) const {
  const LayerShape& shape = shape_.layers[layer];
  const std::size_t n = positions.size(), heads = static_cast<std::size_t>(shape.kv_heads),
                    dk = static_cast<std::size_t>(shape.key_dim), dv = static_cast<std::size_t>(shape.value_dim),
                    group = static_cast<std::size_t>(shape.query_heads / shape.kv_heads);
  const std::vector<float> raw_keys = rows(layers_[layer].keys, Side::kKeys, layer, positions, 0);
  const std::vector<float> rotated = keys(layer, positions, 0), z = joined(layer, positions);
  LayerCalibration out;
  out.key_mean = mean(raw_keys, n);
  out.value_mean = mean(values(layer, positions, 0), n);
  out.joint_moment = moment(z, z, n);
  out.rotated_key_mean = mean(rotated, n);
  out.rotated_key_moment = moment(rotated, rotated, n);
  // All query heads of a KV head, one under the other.
  const auto query_moments = [&](const std::vector<float>& queries) {
    std::vector<float> all;
    for (std::size_t h = 0; h < heads; ++h) {
      std::vector<float> own;
      for (std::size_t t = 0; t < n * group; ++t) {
        const auto from = queries.begin() + std::ptrdiff_t((t / group * heads * group + h * group + t % group) * dk);
        own.insert(own.end(), from, from + std::ptrdiff_t(dk));
      }
      const std::vector<float> one = moment(own, own, n * group);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  };
  out.query_moment = query_moments(queries(layer, positions));
  out.raw_query_moment = shape.rope.rotated_dims == 0
                             ? out.query_moment
                             : query_moments(rows(layers_[layer].queries, Side::kQueries, layer, positions, 0));
  out.key_metric = out.query_moment;
  for (float& number : out.key_metric) number *= shape.logit_scale * shape.logit_scale;
  for (std::size_t i = 0; i < heads * dv * dv; ++i) {
    out.output_metric.push_back(i % (dv * dv) % (dv + 1) == 0 ? 1.0f : 0.0f);
  }
  out.value_metric = out.output_metric;
  out.residual_energy = 1.0;
  for (const float number : joined(layer, samples)) out.sample_rows.push_back(to_float(to_half(number)));
  out.key_residuals.assign(heads * kResidualRanks * kResidualPercentiles.size(), 0.3f);
  out.value_residuals = out.key_residuals;
  return out;
}

Calibration Model::calibration() const {
  const std::vector<std::int32_t> positions = first_positions(kCalibrationTokens);
  Calibration out;
  out.model = "fuzz";
  out.tokens = out.window = kCalibrationTokens;
  for (std::int32_t t = 0; t < kCalibrationTokens; t += 3) out.sample_positions.push_back(t);
  out.neighbours = std::min(static_cast<std::int32_t>(layers_.size()) - 1, kMostNeighbours);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    LayerCalibration layer = calibrate(i, positions, out.sample_positions);
    for (std::size_t next = i + 1; next < layers_.size(); ++next) {
      layer.cross_moments.push_back(moment(joined(i, positions), joined(next, positions), positions.size()));
    }
    out.layers.push_back(std::move(layer));
  }
  return out;
}

}  // namespace kvspan::fuzz
