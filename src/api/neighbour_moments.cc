// SPDX-License-Identifier: Apache-2.0
#include "api/neighbour_moments.h"

#include <algorithm>

#include "base/fail.h"
#include "cache/calibration/array_sizes.h"
#include "linalg/moment_sum.h"

namespace kvspan {

NeighbourMoments::NeighbourMoments(const CacheShape& shape, std::int32_t neighbours,
                                   std::int32_t block)
    : neighbours_(neighbours) {
  const std::size_t layers = shape.layers.size();
  std::size_t widest = 0;
  for (std::size_t i = 0; i < layers; ++i) {
    const std::size_t width = joint_width(shape.layers[i]);
    widest = std::max(widest, width);
    std::vector<CrossSum>& sums = sums_.emplace_back();
    for (std::size_t j = 0; j < following_layers(neighbours, i, layers); ++j) {
      sums.emplace_back(width, joint_width(shape.layers[i + 1 + j]));
    }
  }
  const std::size_t held = 1 + sums_.front().size();
  for (std::size_t i = 0; i < held; ++i) {
    rows_.emplace_back(static_cast<std::size_t>(block), spread_columns(widest));
  }
  positions_.reserve(static_cast<std::size_t>(block));
}

Status NeighbourMoments::check(std::size_t layer, std::span<const std::int32_t> positions) const {
  if (neighbours_ == 0) return {};
  if (layer != next_) {
    return fail(
        ErrorCode::kInvalidArgument,
        "rows of layer {}; allowed now: layer {}, since moments between layers are gathered "
        "and the layers of a block come in order",
        layer, next_);
  }
  if (layer == 0 || std::ranges::equal(positions, positions_)) return {};
  if (positions.size() != positions_.size()) {
    return fail(ErrorCode::kInvalidArgument,
                "layer {} has rows of {} tokens; allowed: {}, as in the layers before it", layer,
                positions.size(), positions_.size());
  }
  const auto differs = std::ranges::mismatch(positions, positions_);
  return fail(ErrorCode::kInvalidArgument,
              "layer {} has a row of position {}; allowed there: {}, as in the layers before it",
              layer, *differs.in1, *differs.in2);
}

void NeighbourMoments::came(std::size_t layer, std::span<const std::int32_t> positions) noexcept {
  if (layer == 0) positions_.assign(positions.begin(), positions.end());
  next_ = (layer + 1) % sums_.size();
}

// How many layers before this one have moments with it.
std::size_t NeighbourMoments::before(std::size_t layer) const noexcept {
  return std::min(layer, rows_.size() - 1);
}

std::size_t NeighbourMoments::items(std::size_t layer) const noexcept {
  std::size_t count = 0;
  for (std::size_t j = 0; j < before(layer); ++j) count += sums_[layer - 1 - j][j].strips();
  return count;
}

void NeighbourMoments::add(std::size_t item, std::size_t layer, std::size_t count) noexcept {
  for (std::size_t j = 0; j < before(layer); ++j) {
    const std::size_t earlier = layer - 1 - j;
    CrossSum& sum = sums_[earlier][j];
    if (item < sum.strips()) return sum.add(item, rows(earlier), rows(layer), 0, count);
    item -= sum.strips();
  }
}

std::vector<std::vector<float>> NeighbourMoments::moments(std::size_t layer, double count) const {
  std::vector<std::vector<float>> out;
  for (const CrossSum& sum : sums_[layer]) out.push_back(sum.moment(count));
  return out;
}

}  // namespace kvspan
