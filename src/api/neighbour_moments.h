// SPDX-License-Identifier: Apache-2.0
// The rows z of the layers that came last, and the sums of their products with those of the layers
// that follow: what Calibration's cross_moments are made of.
//
// Layers of a block of tokens come in order, from the first to the last, and each brings the same
// tokens; where no neighbours are asked for, they may come as they like.
// Cost: for each layer and token neighbours D^2 multiply-adds in f64, shared by the team; 8 bytes
// for each number of a moment, and rows of a block of neighbours + 1 layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvspan/cache.h"
#include "kvspan/result.h"
#include "linalg/cross_sum.h"
#include "linalg/panel.h"

namespace kvspan {

class NeighbourMoments {
 public:
  // `block`: most rows that come at once.
  NeighbourMoments(const CacheShape& shape, std::int32_t neighbours, std::int32_t block);

  // Whether rows at `positions` of `layer` may come now; the error names the layer and what is
  // allowed.
  Status check(std::size_t layer, std::span<const std::int32_t> positions) const;
  // Where the counted rows of that layer go; padded with zeros to a multiple of 8 columns. They
  // stay until the layer that is `neighbours` further has come.
  detail::Panel& rows(std::size_t layer) noexcept { return rows_[layer % rows_.size()]; }
  const detail::Panel& rows(std::size_t layer) const noexcept {
    return rows_[layer % rows_.size()];
  }
  // The layer has come. By one thread, while no other one is in check().
  void came(std::size_t layer, std::span<const std::int32_t> positions) noexcept;

  // The products of the layer's first `count` rows with those of the layers before it, cut into
  // items that may run at the same time.
  std::size_t items(std::size_t layer) const noexcept;
  void add(std::size_t item, std::size_t layer, std::size_t count) noexcept;

  // LayerCalibration::cross_moments of a layer that has seen `count` rows.
  std::vector<std::vector<float>> moments(std::size_t layer, double count) const;

 private:
  std::size_t before(std::size_t layer) const noexcept;

  std::int32_t neighbours_;
  std::vector<detail::Panel> rows_;          // layer i is at i modulo their number
  std::vector<std::vector<CrossSum>> sums_;  // of each layer with those that follow
  std::size_t next_ = 0;                     // layer to come
  std::vector<std::int32_t> positions_;      // of the block at hand
};

}  // namespace kvspan
