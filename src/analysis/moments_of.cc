// SPDX-License-Identifier: Apache-2.0
#include "analysis/moments_of.h"

#include <vector>

#include "base/expect.h"
#include "method/calibrated/rotated_moment.h"

namespace kvspan {
namespace {

std::size_t at(std::int32_t n) {
  return static_cast<std::size_t>(n);
}

// Rows and columns [first, first + n) of a [width, width] moment, less its means if asked.
MatrixD block_of(const std::vector<float>& moment, const std::vector<float>& mean,
                 std::size_t first, std::size_t n, bool centred) {
  const std::size_t width = mean.size();
  MatrixD out(n, n);
  for (std::size_t i = 0; i < n; ++i) {
    const float* from = moment.data() + (first + i) * width + first;
    for (std::size_t j = 0; j < n; ++j) {
      out(i, j) = from[j];
      if (centred) out(i, j) -= double{mean[first + i]} * mean[first + j];
    }
  }
  return out;
}

std::vector<float> joint_mean(const LayerCalibration& layer) {
  std::vector<float> mean = layer.key_mean;
  mean.insert(mean.end(), layer.value_mean.begin(), layer.value_mean.end());
  return mean;
}

void turn(const LayerShape& shape, std::int32_t anchor, MatrixD& moment) {
  KVSPAN_EXPECT(anchor > 0, "a block of positions");
  if (shape.rope.angles.empty()) return;
  average_rotations(shape.rope, shape.kv_heads, shape.key_dim, anchored_offsets(anchor), moment);
}

}  // namespace

std::string_view name_of(Side side) noexcept {
  switch (side) {
    case Side::kKeyPre:
      return "key_pre";
    case Side::kKeyPost:
      return "key_post";
    case Side::kKeyAnchored:
      return "key_anchored";
    case Side::kValue:
      break;
  }
  return "value";
}

std::int32_t dim_of(const LayerShape& shape, Side side) noexcept {
  return side == Side::kValue ? shape.value_dim : shape.key_dim;
}

MatrixD layer_moment(const LayerShape& shape, const LayerCalibration& layer, Side side,
                     const MomentChoice& choice) {
  const std::size_t keys = at(shape.kv_heads) * at(shape.key_dim);
  if (side == Side::kKeyPost) {
    return block_of(layer.rotated_key_moment, layer.rotated_key_mean, 0, keys, choice.centred);
  }
  const std::vector<float> mean = joint_mean(layer);
  if (side == Side::kValue) {
    return block_of(layer.joint_moment, mean, keys, mean.size() - keys, choice.centred);
  }
  MatrixD moment = block_of(layer.joint_moment, mean, 0, keys, choice.centred);
  if (side == Side::kKeyAnchored) turn(shape, choice.anchor, moment);
  return moment;
}

MatrixD key_value_moment(const LayerShape& shape, const LayerCalibration& layer,
                         const MomentChoice& choice) {
  const std::vector<float> mean = joint_mean(layer);
  MatrixD moment = block_of(layer.joint_moment, mean, 0, mean.size(), choice.centred);
  if (choice.anchor > 0) turn(shape, choice.anchor, moment);
  return moment;
}

MatrixD head_block(const MatrixD& moment, std::size_t head, std::size_t dim) {
  KVSPAN_EXPECT((head + 1) * dim <= moment.rows(), "a head of the layer");
  MatrixD out(dim, dim);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) out(i, j) = moment(head * dim + i, head * dim + j);
  }
  return out;
}

}  // namespace kvspan
