// SPDX-License-Identifier: Apache-2.0
// A made-up model: keys and values of a few directions and some noise, drifting with the text, or
// one layer of a real one, with the calibration that fits them; and the steps an engine would make.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cache/rope.h"
#include "kvspan/cache.h"
#include "kvspan/calibration.h"
#include "kvspan/team.h"
#include "linalg/panel.h"
#include "tests/attention/activations.h"

namespace kvspan::testing {

inline CacheShape synthetic_shape(std::int32_t layers = 2, std::int32_t kv_heads = 2,
                                  std::int32_t dim = 16) {
  CacheShape shape;
  for (std::int32_t i = 0; i < layers; ++i) {
    LayerShape layer;
    layer.query_heads = 2 * kv_heads;
    layer.kv_heads = kv_heads;
    layer.key_dim = layer.value_dim = dim;
    layer.rope.rotated_dims = dim;
    layer.rope.pairs = i % 2 == 0 ? Rope::Pairs::kNeighbours : Rope::Pairs::kHalves;
    for (std::int32_t p = 0; p < dim / 2; ++p) {
      layer.rope.angles.push_back(std::pow(10000.0, -2.0 * p / dim));
    }
    layer.logit_scale = 1.0f / std::sqrt(static_cast<float>(dim));
    shape.layers.push_back(layer);
  }
  return shape;
}

// Rows of a text of n tokens, all layers.
class SyntheticText {
 public:
  // Token i is at positions[i]; without positions, at i.
  SyntheticText(const CacheShape& shape, std::int32_t n, std::uint64_t seed,
                std::vector<std::int32_t> positions = {})
      : shape_(shape), n_(n), layers_(shape.layers.size()), positions_(std::move(positions)) {
    Random random(seed);
    if (positions_.empty()) number_positions();
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const LayerShape& l = shape.layers[i];
      fill(layers_[i].raw, l.kv_heads, l.key_dim, 1.0f + 0.5f * static_cast<float>(i), random);
      fill(layers_[i].values, l.kv_heads, l.value_dim, 1.0f, random);
      fill(layers_[i].queries, l.query_heads, l.key_dim, 1.5f, random);
      layers_[i].keys = layers_[i].raw;
      turn(l, l.kv_heads, layers_[i].keys);
      turn(l, l.query_heads, layers_[i].queries);
    }
  }

  explicit SyntheticText(const Activations& a) : n_(a.tokens), layers_(1) {
    shape_.layers = {a.layer};
    layers_[0] = {a.keys, a.keys, a.values, a.queries};
    number_positions();
    turn(a.layer, a.layer.kv_heads, layers_[0].raw, -1);
  }

  std::int32_t size() const { return n_; }
  const CacheShape& shape() const { return shape_; }
  std::span<const std::int32_t> positions() const { return positions_; }

  KvRows rows(std::size_t layer, std::int32_t first, std::int32_t n) const {
    const LayerShape& l = shape_.layers[layer];
    KvRows rows;
    rows.keys = view(layers_[layer].keys, l.kv_heads, l.key_dim, first, n);
    rows.values = view(layers_[layer].values, l.kv_heads, l.value_dim, first, n);
    rows.positions = std::span(positions_).subspan(std::size_t(first), std::size_t(n));
    return rows;
  }
  Queries queries(std::size_t layer, std::int32_t first, std::int32_t n) const {
    const LayerShape& l = shape_.layers[layer];
    return {view(layers_[layer].queries, l.query_heads, l.key_dim, first, n),
            std::span(positions_).subspan(std::size_t(first), std::size_t(n))};
  }

  // Values as massive activations make them: for all such tokens the same, but for a little noise.
  void make_massive(std::int32_t token, Random& random) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const auto width =
          std::size_t(shape_.layers[i].kv_heads) * std::size_t(shape_.layers[i].value_dim);
      float* row = layers_[i].values.data() + std::size_t(token) * width;
      for (std::size_t j = 0; j < width; ++j) {
        row[j] = (j % 2 == 0 ? 0.5f : -0.5f) + 0.1f * float(random.normal());
      }
    }
  }

  // The first `count` numbers of all values become 0.
  void clear_values(std::int32_t count) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const auto dim = std::size_t(shape_.layers[i].value_dim);
      for (std::size_t at = 0; at < layers_[i].values.size(); at += dim) {
        std::fill_n(layers_[i].values.begin() + std::ptrdiff_t(at), count, 0.0f);
      }
    }
  }

  // Rows of all layers become those of the first, but for noise.
  void make_layers_alike(float noise, Random& random) {
    for (std::size_t i = 1; i < layers_.size(); ++i) {
      for (const auto side : {&Layer::raw, &Layer::values}) {
        layers_[i].*side = layers_[0].*side;
        for (float& x : layers_[i].*side) x += noise * random.normal();
      }
      layers_[i].keys = layers_[i].raw;
      turn(shape_.layers[i], shape_.layers[i].kv_heads, layers_[i].keys);
    }
  }

  // The calibration of exactly this text, with moments of each layer and all that follow where all are of one width.
  Calibration calibration() const {
    Calibration c;
    c.tokens = c.window = n_;
    for (std::int32_t t = 0; t < n_; t += 3) c.sample_positions.push_back(t);
    c.neighbours = static_cast<std::int32_t>(layers_.size()) - 1;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      c.layers.push_back(layer_moments(i, c));
      for (std::size_t j = i + 1; j < layers_.size(); ++j) {
        c.layers[i].cross_moments.push_back(moment(joined(i), joined(j)));
      }
    }
    return c;
  }

 private:
  struct Layer {
    std::vector<float> raw, keys, values, queries;  // [n, heads, dim]
  };

  void number_positions() {
    positions_.resize(static_cast<std::size_t>(n_));
    std::iota(positions_.begin(), positions_.end(), 0);
  }

  // Six strong directions per head that turn slowly, the rest weak.
  void fill(std::vector<float>& rows, std::int32_t heads, std::int32_t dim, float scale,
            Random& random) {
    const auto d = std::size_t(dim);
    rows.assign(std::size_t(n_) * std::size_t(heads) * d, 0.0f);
    for (std::int32_t h = 0; h < heads; ++h) {
      std::vector<float> directions(12 * d), mean(d);
      for (float& x : directions) x = random.normal();
      for (float& x : mean) x = random.normal();
      for (std::int32_t t = 0; t < n_; ++t) {
        float* row = rows.data() + (std::size_t(t) * std::size_t(heads) + std::size_t(h)) * d;
        const float drift = float(t) / float(n_);
        for (std::size_t k = 0; k < 6; ++k) {
          const float a = random.normal() * std::pow(0.7f, float(k));
          for (std::size_t j = 0; j < d; ++j) {
            row[j] += scale * a *
                      ((1 - drift) * directions[k * d + j] + drift * directions[(k + 6) * d + j]) /
                      std::sqrt(float(dim));
          }
        }
        for (std::size_t j = 0; j < d; ++j) {
          row[j] += scale * (0.5f * mean[j] + 0.05f * random.normal());
        }
      }
    }
  }

  void turn(const LayerShape& l, std::int32_t heads, std::vector<float>& rows,
            std::int32_t sign = 1) const {
    for (std::int32_t t = 0; t < n_; ++t) {
      for (std::int32_t h = 0; h < heads; ++h) {
        rope_rotate(l.rope, sign * positions_[std::size_t(t)],
                    rows.data() + std::size_t(t * heads + h) * std::size_t(l.key_dim));
      }
    }
  }

  static TensorView<const float, 3> view(const std::vector<float>& rows, std::int32_t heads,
                                         std::int32_t dim, std::int32_t first, std::int32_t n) {
    return {rows.data() + std::size_t(first) * std::size_t(heads * dim),
            {std::size_t(n), std::size_t(heads), std::size_t(dim)}};
  }

  // Means of columns, and the mean of the outer products of rows.
  std::vector<float> mean(const detail::Panel& rows) const {
    detail::Panel ones(rows.rows(), 1);
    for (std::size_t t = 0; t < rows.rows(); ++t) ones(t, 0) = 1.0;
    return moment(ones, rows);
  }
  std::vector<float> moment(const detail::Panel& left, const detail::Panel& right) const {
    const detail::Panel sums = detail::outer_product(left, right);
    std::vector<float> means;
    for (std::size_t a = 0; a < sums.rows(); ++a) {
      for (std::size_t b = 0; b < sums.cols(); ++b) means.push_back(float(sums(a, b) / n_));
    }
    return means;
  }

  LayerCalibration layer_moments(std::size_t i, const Calibration& c) const {
    const LayerShape& l = shape_.layers[i];
    const Layer& rows = layers_[i];
    const auto H = std::size_t(l.kv_heads), d = std::size_t(l.key_dim), n = std::size_t(n_);
    const std::size_t G = std::size_t(l.query_heads) / H;
    LayerCalibration out;
    const auto keys = detail::Panel::of(TensorView<const float, 2>(rows.raw.data(), {n, H * d}));
    const auto values = detail::Panel::of(TensorView<const float, 2>(rows.values.data(), {n, H * d}));
    const auto turned = detail::Panel::of(TensorView<const float, 2>(rows.keys.data(), {n, H * d}));
    const detail::Panel z = joined(i);
    out.key_mean = mean(keys);
    out.value_mean = mean(values);
    out.joint_moment = moment(z, z);
    out.rotated_key_mean = mean(turned);
    out.rotated_key_moment = moment(turned, turned);
    for (std::size_t h = 0; h < H; ++h) {
      // All query heads of a KV head, one under the other.
      detail::Panel queries(n * G, d);
      for (std::size_t t = 0; t < n * G; ++t) {
        std::copy_n(rows.queries.data() + ((t / G * H + h) * G + t % G) * d, d, queries.row(t));
      }
      for (const float x : moment(queries, queries)) out.query_moment.push_back(x / float(G));
    }
    out.raw_query_moment = out.query_moment;
    out.output_metric.assign(H * d * d, 0.0f);
    for (std::size_t h = 0; h < H; ++h) {
      for (std::size_t a = 0; a < d; ++a) out.output_metric[h * d * d + a * d + a] = 1.0f;
    }
    // As if one token at a time took all the weight, and moved attention by 1.
    out.key_metric = out.query_moment;
    for (float& x : out.key_metric) x *= l.logit_scale * l.logit_scale;
    out.value_metric = out.output_metric;
    out.residual_energy = 1.0;
    for (const std::int32_t t : c.sample_positions) {
      const float* k = rows.raw.data() + std::size_t(t) * H * d;
      const float* v = rows.values.data() + std::size_t(t) * H * d;
      out.sample_rows.insert(out.sample_rows.end(), k, k + H * d);
      out.sample_rows.insert(out.sample_rows.end(), v, v + H * d);
    }
    out.key_residuals.assign(H * std::size_t(kResidualRanks) * kResidualPercentiles.size(), 0.3f);
    out.value_residuals = out.key_residuals;
    return out;
  }

  // All tokens before RoPE, [keys of all heads, values of all heads].
  detail::Panel joined(std::size_t layer) const {
    const LayerShape& l = shape_.layers[layer];
    const auto k = std::size_t(l.kv_heads * l.key_dim), v = std::size_t(l.kv_heads * l.value_dim);
    detail::Panel z(std::size_t(n_), k + v);
    for (std::size_t t = 0; t < z.rows(); ++t) {
      std::copy_n(layers_[layer].raw.data() + t * k, k, z.row(t));
      std::copy_n(layers_[layer].values.data() + t * v, v, z.row(t) + k);
    }
    return z;
  }

  CacheShape shape_;
  std::int32_t n_;
  std::vector<Layer> layers_;
  std::vector<std::int32_t> positions_;
};

// Makes the steps of an engine: tokens first .. first + n - 1 in calls of `block`, and returns what
// attention gave, [n] rows of every layer one after the other.
inline std::vector<float> run(KvCache& cache, const SyntheticText& text, std::int32_t first,
                              std::int32_t n, std::int32_t block) {
  TeamState state;
  Team team(state, 0, 1);
  const auto scratch = make_attention_scratch();
  std::vector<float> all;
  for (std::int32_t at = first; at < first + n; at += block) {
    const std::int32_t count = std::min(block, first + n - at);
    for (std::size_t layer = 0; layer < text.shape().layers.size(); ++layer) {
      const LayerShape& l = text.shape().layers[layer];
      const auto heads = std::size_t(l.query_heads), d = std::size_t(l.value_dim);
      std::vector<float> out(std::size_t(count) * heads * d);
      const int index = static_cast<int>(layer);
      EXPECT_TRUE(cache.append(index, text.rows(layer, at, count), team));
      EXPECT_TRUE(cache.attend(index, text.queries(layer, at, count),
                               {out.data(), {std::size_t(count), heads, d}}, *scratch, team));
      const Status settled = cache.settle(index, team);
      EXPECT_TRUE(settled) << (settled ? "" : settled.error().message);
      all.insert(all.end(), out.begin(), out.end());
    }
  }
  return all;
}

inline std::vector<std::byte> saved(const KvCache& cache) {
  auto bytes = cache.save();
  EXPECT_TRUE(bytes) << (bytes ? "" : bytes.error().message);
  return std::move(bytes).value();
}

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0.0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
  }
  return most;
}

}  // namespace kvspan::testing
