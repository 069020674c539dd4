// SPDX-License-Identifier: Apache-2.0
// An exact cache that keeps a copy of all that passes through it, and an observer that does the
// same, for tests that compute from the activations themselves.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "kvspan/cache.h"
#include "model/activation_observer.h"

namespace kvspan::testing {

class RecordingCache final : public KvCache, public ActivationObserver {
 public:
  struct Row {
    std::int32_t position = 0;
    std::vector<float> numbers;  // heads one after the other
  };
  struct Layer {
    std::vector<Row> keys_raw, keys, values, queries, inputs, post_norm_inputs;
  };

  explicit RecordingCache(const CacheShape& shape)
      : inner_(std::move(*make_cache(shape, "full:store=f32"))), layers(shape.layers.size()) {}

  const CacheShape& shape() const noexcept override { return inner_->shape(); }
  std::string recipe() const override { return inner_->recipe(); }
  std::int32_t tokens() const noexcept override { return inner_->tokens(); }
  Status append(int layer, const KvRows& rows, Team& team) override {
    if (team.leader()) {
      Layer& to = layers[static_cast<std::size_t>(layer)];
      copy(rows.keys_raw, rows.positions, to.keys_raw);
      copy(rows.keys, rows.positions, to.keys);
      copy(rows.values, rows.positions, to.values);
    }
    return inner_->append(layer, rows, team);
  }
  Status attend(int layer, const Queries& queries, TensorView<float, 3> out,
                AttentionScratch& scratch, Team& team) override {
    if (team.leader()) {
      copy(queries.rows, queries.positions, layers[static_cast<std::size_t>(layer)].queries);
    }
    return inner_->attend(layer, queries, out, scratch, team);
  }
  Status settle(int layer, Team& team) override { return inner_->settle(layer, team); }
  Status truncate(std::int32_t n) override { return inner_->truncate(n); }
  void clear() override { inner_->clear(); }
  Result<std::unique_ptr<KvCache>> fork() const override { return inner_->fork(); }
  CacheBytes bytes() const override { return inner_->bytes(); }

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

  std::unique_ptr<KvCache> inner_;

 public:
  std::vector<Layer> layers;
};

}  // namespace kvspan::testing
