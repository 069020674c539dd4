// SPDX-License-Identifier: Apache-2.0
// A KV cache written as plainly as attention can be: f32 rows in vectors, double-precision softmax,
// one thread doing all the work. Tests hold the engine against it, so that a fault of the graph and
// a fault of the real caches cannot hide each other.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kvspan/cache.h"

namespace kvspan::testing {

class ExactCache final : public KvCache {
 public:
  explicit ExactCache(CacheShape shape) : shape_(std::move(shape)), layers_(shape_.layers.size()) {}

  const CacheShape& shape() const noexcept override { return shape_; }
  std::string recipe() const override { return "exact"; }
  std::int32_t tokens() const noexcept override {
    return static_cast<std::int32_t>(layers_.back().positions.size());
  }

  Status append(int layer, const KvRows& rows, Team& team) override {
    if (team.leader()) {
      Layer& at = layers_[static_cast<std::size_t>(layer)];
      for (std::size_t i = 0; i < rows.positions.size(); ++i) {
        at.positions.push_back(rows.positions[i]);
        copy_row(rows.keys, i, at.keys);
        copy_row(rows.values, i, at.values);
      }
    }
    team.barrier();
    return {};
  }

  Status attend(int layer, const Queries& queries, TensorView<float, 3> out, AttentionScratch&,
                Team& team) override {
    team.barrier();
    if (team.leader()) {
      for (std::size_t row = 0; row < queries.positions.size(); ++row) {
        for (std::size_t head = 0; head < queries.rows.shape[1]; ++head) {
          attend_row(static_cast<std::size_t>(layer), queries.rows.row(row, head),
                     queries.positions[row], head, out.row(row, head));
        }
      }
    }
    team.barrier();
    return {};
  }

  Status settle(int, Team& team) override {
    team.barrier();
    return {};
  }

  Status truncate(std::int32_t n) override {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      Layer& at = layers_[i];
      const LayerShape& s = shape_.layers[i];
      const auto keep = std::min(at.positions.size(), static_cast<std::size_t>(n));
      at.positions.resize(keep);
      at.keys.resize(keep * static_cast<std::size_t>(s.kv_heads * s.key_dim));
      at.values.resize(keep * static_cast<std::size_t>(s.kv_heads * s.value_dim));
    }
    return {};
  }
  std::int32_t least_tokens() const noexcept override { return 1; }
  void clear() override { layers_.assign(layers_.size(), {}); }
  Result<std::unique_ptr<KvCache>> fork() const override {
    return std::unique_ptr<KvCache>(std::make_unique<ExactCache>(*this));
  }
  CacheBytes bytes() const override { return {}; }

 private:
  struct Layer {
    std::vector<std::int32_t> positions;
    std::vector<float> keys, values;
  };

  static void copy_row(const TensorView<const float, 3>& from, std::size_t i,
                       std::vector<float>& to) {
    for (std::size_t head = 0; head < from.shape[1]; ++head) {
      const float* row = from.row(i, head);
      to.insert(to.end(), row, row + from.shape[2]);
    }
  }

  void attend_row(std::size_t layer, const float* query, std::int32_t position, std::size_t head,
                  float* out) const {
    const Layer& at = layers_[layer];
    const LayerShape& s = shape_.layers[layer];
    const auto d = static_cast<std::size_t>(s.key_dim), dv = static_cast<std::size_t>(s.value_dim);
    const auto heads = static_cast<std::size_t>(s.kv_heads);
    const std::size_t kv = head / (static_cast<std::size_t>(s.query_heads) / heads);
    std::vector<double> weights(at.positions.size(), 0.0);
    double top = -INFINITY;
    const auto visible = [&](std::size_t t) {
      const std::int32_t p = at.positions[t];
      return p <= position && (s.window == 0 || p > position - s.window);
    };
    for (std::size_t t = 0; t < weights.size(); ++t) {
      if (!visible(t)) continue;
      const float* key = at.keys.data() + (t * heads + kv) * d;
      double dot = 0.0;
      for (std::size_t i = 0; i < d; ++i) dot += double{query[i]} * key[i];
      weights[t] = dot * s.logit_scale;
      if (s.soft_cap > 0.0f) weights[t] = s.soft_cap * std::tanh(weights[t] / s.soft_cap);
      top = std::max(top, weights[t]);
    }
    std::vector<double> sum(dv, 0.0);
    double total = 0.0;
    for (std::size_t t = 0; t < weights.size(); ++t) {
      if (!visible(t)) continue;
      const double w = std::exp(weights[t] - top);
      total += w;
      const float* value = at.values.data() + (t * heads + kv) * dv;
      for (std::size_t i = 0; i < dv; ++i) sum[i] += w * value[i];
    }
    for (std::size_t i = 0; i < dv; ++i) out[i] = static_cast<float>(sum[i] / total);
  }

  CacheShape shape_;
  std::vector<Layer> layers_;
};

}  // namespace kvspan::testing
