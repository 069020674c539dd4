// SPDX-License-Identifier: Apache-2.0
// An exact cache that keeps a copy of all that passes through it, and an observer that does the
// same, for tests that compute from the activations themselves.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "api/wrapped_cache.h"
#include "cache/rope.h"
#include "kvspan/cache.h"
#include "llama/activation_observer.h"

namespace kvspan::testing {

class RecordingCache final : public WrappedCache, public ActivationObserver {
 public:
  struct Row {
    std::int32_t position = 0;
    std::vector<float> numbers;  // heads one after the other
  };
  struct Layer {
    // keys_raw: turned back to before RoPE.
    std::vector<Row> keys_raw, keys, values, queries, inputs, post_norm_inputs;
  };

  explicit RecordingCache(const CacheShape& shape)
      : WrappedCache(std::move(*make_cache(shape, "full:store=f32"))),
        layers(shape.layers.size()) {}

  Status append(int layer, const KvRows& rows, Team& team) override {
    if (team.leader()) {
      Layer& to = layers[static_cast<std::size_t>(layer)];
      const LayerShape& of = shape().layers[static_cast<std::size_t>(layer)];
      const std::size_t before = to.keys.size();
      copy(rows.keys, rows.positions, to.keys);
      for (std::size_t i = before; i < to.keys.size(); ++i) {
        to.keys_raw.push_back(to.keys[i]);
        rope_unrotate(of.rope, to.keys[i].position, to.keys_raw[i].numbers.data(), of.kv_heads,
                      of.key_dim);
      }
      copy(rows.values, rows.positions, to.values);
    }
    return WrappedCache::append(layer, rows, team);
  }
  Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                AttentionScratch& scratch, Team& team) override {
    if (team.leader()) {
      copy(queries.rows, queries.positions, layers[static_cast<std::size_t>(layer)].queries);
    }
    return WrappedCache::attend(layer, queries, out, scratch, team);
  }

  void on_layer_input(int layer, TensorView<const float, 2> rows,
                      std::span<const std::int32_t> positions) override {
    copy(heads_of(rows), positions, layers[static_cast<std::size_t>(layer)].inputs);
  }
  void on_post_norm_input(int layer, TensorView<const float, 2> rows,
                          std::span<const std::int32_t> positions) override {
    copy(heads_of(rows), positions, layers[static_cast<std::size_t>(layer)].post_norm_inputs);
  }

 private:
  static TensorView<const float, 3> heads_of(TensorView<const float, 2> rows) {
    return {rows.data, {rows.shape[0], 1, rows.shape[1]}, {rows.strides[0], rows.shape[1], 1}};
  }
  static void copy(const TensorView<const float, 3>& rows, std::span<const std::int32_t> positions,
                   std::vector<Row>& to) {
    for (std::size_t i = 0; i < positions.size(); ++i) {
      Row row{positions[i], {}};
      for (std::size_t head = 0; head < rows.shape[1]; ++head) {
        row.numbers.insert(row.numbers.end(), rows.row(i, head), rows.row(i, head) + rows.shape[2]);
      }
      to.push_back(std::move(row));
    }
  }

 public:
  std::vector<Layer> layers;
};

}  // namespace kvspan::testing
