// SPDX-License-Identifier: Apache-2.0
// Collects a model's Calibration while any engine processes text: the engine passes keys, values and
// queries of every layer and gets the moments that methods are fitted to.
//
// The text is split into windows, each a sequence of its own from position 0. For every batch of
// tokens and every layer the engine calls add_rows, then add_queries, and add_layer_input if it has
// the residual stream. Layers may come in any order, batches of one layer in the order of the text.
// With moments between layers, all layers of a batch come in order before the next batch. finish()
// returns the calibration.
// Cost: per layer and token about (D^2 + (H dk)^2) / 2 + query_heads dk^2 + neighbours D^2
// multiply-adds in f64 (names as in kvspan/calibration.h), shared by the team; every seventh query
// computes attention once more. Memory: 8 bytes per number of a moment, 4 per number of a window's
// keys and values.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kvspan/cache.h"
#include "kvspan/calibration.h"
#include "kvspan/result.h"
#include "kvspan/team.h"
#include "kvspan/tensor_view.h"

namespace kvspan {

struct MomentOptions {
  std::int32_t window = 4096;   // tokens of a complete window
  std::int32_t skip = 32;       // uncounted tokens at the start of each
  std::int64_t tokens = 0;      // counted tokens in all, without skipped ones; above 0
  std::int64_t samples = 1024;  // most sample rows, evenly spread over the counted tokens
  std::int32_t block = 512;     // most rows of one call
  // Following layers that each layer has moments with (Calibration::neighbours), up to
  // kMostNeighbours.
  std::int32_t neighbours = 0;
};

// Weights behind the attention output of a layer.
struct OutputWeights {
  // [hidden, query_heads * value_dim], the output projection of all heads to the residual stream.
  // Empty if there is no single matrix; then all directions of a value have equal weight.
  TensorView<const float, 2> rows;
  std::span<const float> gain;  // [hidden], of a norm behind the matrix; empty: there is none
  float epsilon = 0.0f;         // of that norm
  // [hidden], gain of the next norm on the residual stream, as weights of its dimensions. Empty: equal weights.
  std::span<const float> reader;
};

// One call at a time; calls with a team are made by all its members. Not copyable.
class MomentCollector {
 public:
  // Fails, naming what is wrong, on a shape without layers and on options out of range.
  static Result<MomentCollector> create(const CacheShape& shape, const MomentOptions& options);
  MomentCollector(MomentCollector&&) noexcept;
  MomentCollector& operator=(MomentCollector&&) noexcept;
  ~MomentCollector();

  // Optional; call before add_rows. Copied. Default: the identity for every head.
  Status set_output(int layer, const OutputWeights& weights);

  // Keys and values as for KvCache::append, queries as for KvCache::attend. Both end with a barrier.
  // Wrong shapes fail before any change; with moments between layers, so do layers out of order and
  // tokens that differ from those of earlier layers.
  Status add_rows(int layer, const KvRows& rows, Team& team);
  Status add_queries(int layer, const Queries& queries, Team& team);
  // The residual stream at the input of a layer, [n, hidden]; and the input of a norm behind the output
  // matrix, if there is one. Called by one thread.
  void add_layer_input(int layer, TensorView<const float, 2> rows,
                       std::span<const std::int32_t> positions);
  void add_post_norm_input(int layer, TensorView<const float, 2> rows,
                           std::span<const std::int32_t> positions);

  // Fails if a layer has no tokens, or layers have different numbers of them. Layer weights and rates
  // are not measured. A layer without add_layer_input uses the mean of the others.
  Result<Calibration> finish(const std::string& model, const std::string& fingerprint) const;

 private:
  struct State;
  explicit MomentCollector(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvspan
