// SPDX-License-Identifier: Apache-2.0
// Gathers a model's Calibration while any engine reads text with it: the engine hands over what
// passes through attention, and gets the moments that methods learn from.
//
// The text is cut into windows, each read as a sequence of its own from position 0. For every block
// of tokens and every layer the engine calls add_rows, then add_queries, and add_layer_input where it
// has the residual stream. Layers may come in any order, blocks of one layer in the order of the
// text; where moments between layers are gathered, all layers of a block come in order before the
// next block does. Once all is read, finish() gives the calibration.
// Cost: per layer and token about (D^2 + (H dk)^2) / 2 + query_heads dk^2 + neighbours D^2
// multiply-adds in f64 (names as in kvspan/calibration.h), shared by the team; every seventh query
// attends once more. 8 bytes for each number of a moment, 4 for those of a window's keys and values.
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
  std::int32_t window = 4096;   // tokens of a whole window
  std::int32_t skip = 32;       // tokens not counted at the start of each
  std::int64_t tokens = 0;      // that will be counted in all, those skipped left out; above 0
  std::int64_t samples = 1024;  // rows to keep at most, evenly spread over the counted tokens
  std::int32_t block = 512;     // most rows of one call
  // Following layers that each layer has moments with (Calibration::neighbours), up to
  // kMostNeighbours.
  std::int32_t neighbours = 0;
};

// What follows the attention output of a layer.
struct OutputWeights {
  // [hidden, query_heads * value_dim], the matrix that takes the heads' outputs to the residual
  // stream; empty where there is no single one, and then all directions of a value count alike.
  TensorView<const float, 2> rows;
  std::span<const float> gain;  // [hidden], of a norm that follows the matrix; empty: none does
  float epsilon = 0.0f;         // of that norm
  // [hidden], the gain of the norm that reads the residual stream next: it tells which of its numbers count. Empty: all
  // alike.
  std::span<const float> reader;
};

// One call at a time, made by every member of a team where it takes one. Not copied.
class MomentCollector {
 public:
  // Fails, naming what is wrong, on a shape without layers and on options out of range.
  static Result<MomentCollector> create(const CacheShape& shape, const MomentOptions& options);
  MomentCollector(MomentCollector&&) noexcept;
  MomentCollector& operator=(MomentCollector&&) noexcept;
  ~MomentCollector();

  // Before the layer's rows. Copied. May be left out: then as if the matrix were the identity for every head.
  Status set_output(int layer, const OutputWeights& weights);

  // Keys and values as KvCache::append takes them, queries as KvCache::attend does. Both end with a
  // barrier. Wrong shapes, layers out of order and other tokens than in the layers before, where
  // that matters, are found before anything is touched.
  Status add_rows(int layer, const KvRows& rows, Team& team);
  Status add_queries(int layer, const Queries& queries, Team& team);
  // The residual stream that enters a layer, [n, hidden]; and what the output matrix gives to a
  // norm that follows it, where one does. By one thread.
  void add_layer_input(int layer, TensorView<const float, 2> rows,
                       std::span<const std::int32_t> positions);
  void add_post_norm_input(int layer, TensorView<const float, 2> rows,
                           std::span<const std::int32_t> positions);

  // Fails where a layer has seen no tokens, or some have seen more than others. Layer weights and
  // rates are not measured. A layer whose input was not given is taken to be like the others.
  Result<Calibration> finish(const std::string& model, const std::string& fingerprint) const;

 private:
  struct State;
  explicit MomentCollector(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvspan
