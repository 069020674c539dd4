// SPDX-License-Identifier: Apache-2.0
// A made-up model of any shape: rows of every layer, position and text, each made anew from its
// numbers, and a calibration that fits them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvspan/cache.h"
#include "kvspan/calibration.h"
#include "tests/fuzz/input.h"

namespace kvspan::fuzz {

CacheShape choose_shape(Input& input);
// Two layers, two KV heads for four query heads, and `window` in the second layer.
CacheShape small_shape(std::int32_t dim, std::int32_t window = 0);

class Model {
 public:
  Model(CacheShape shape, std::uint64_t seed);

  const CacheShape& shape() const noexcept { return shape_; }

  // [n, heads, dim] of the tokens at `positions` of text number `text`, keys and queries after RoPE. Values of some
  // tokens are all alike and small, as massive activations leave them.
  std::vector<float> keys(std::size_t layer, std::span<const std::int32_t> positions, std::uint64_t text) const;
  std::vector<float> values(std::size_t layer, std::span<const std::int32_t> positions, std::uint64_t text) const;
  std::vector<float> queries(std::size_t layer, std::span<const std::int32_t> positions) const;

  // Of 96 tokens.
  Calibration calibration() const;

 private:
  enum class Side : std::uint8_t { kKeys, kValues, kQueries };
  // What rows of a side are made of: a mean and six directions for each head.
  struct Source {
    std::int32_t heads = 0, dim = 0;
    std::vector<float> mean, directions;
  };
  struct Layer {
    Source keys, values, queries;
  };
  std::vector<float> rows(const Source& of, Side side, std::size_t layer, std::span<const std::int32_t> positions,
                          std::uint64_t text) const;
  void rotate(std::size_t layer, std::int32_t heads, std::span<const std::int32_t> positions,
              std::vector<float>& rows) const;
  LayerCalibration calibrate(std::size_t layer, std::span<const std::int32_t> positions,
                             std::span<const std::int32_t> samples) const;
  // [keys before RoPE, values] of each position.
  std::vector<float> joined(std::size_t layer, std::span<const std::int32_t> positions) const;

  CacheShape shape_;
  std::uint64_t seed_;
  std::vector<Layer> layers_;
};

}  // namespace kvspan::fuzz
