// SPDX-License-Identifier: Apache-2.0
#include "method/calibrated/moments.h"

#include <cstddef>

#include "method/calibrated/rotated_moment.h"

namespace kvspan {
namespace {

// The block of rows and columns first .. first + n - 1 of a square matrix of `side` rows.
MatrixD block(const std::vector<float>& matrix, std::size_t side, std::size_t first,
              std::size_t n) {
  MatrixD out(n, n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) out(i, j) = matrix[(first + i) * side + first + j];
  }
  return out;
}

}  // namespace

Moment moment_of(const LayerShape& layer, const LayerCalibration& calibration, Domain domain,
                 const HeadRange& heads, std::int32_t anchor_block) {
  const auto key_dim = static_cast<std::size_t>(layer.key_dim);
  const auto value_dim = static_cast<std::size_t>(layer.value_dim);
  const auto all = static_cast<std::size_t>(layer.kv_heads);
  const auto first = static_cast<std::size_t>(heads.first);
  const auto count = static_cast<std::size_t>(heads.count);
  const std::size_t joint = all * (key_dim + value_dim);
  if (domain == Domain::kPostRopeKey) {
    return {block(calibration.rotated_key_moment, all * key_dim, first * key_dim, count * key_dim),
            {}};
  }
  if (domain == Domain::kValue) {
    return {block(calibration.joint_moment, joint, all * key_dim + first * value_dim,
                  count * value_dim),
            {}};
  }
  Moment moment{block(calibration.joint_moment, joint, first * key_dim, count * key_dim), {}};
  if (domain == Domain::kPreRopeKey) return moment;
  const float* mean = calibration.key_mean.data() + first * key_dim;
  moment.mean.assign(mean, mean + count * key_dim);
  for (std::size_t i = 0; i < moment.mean.size(); ++i) {
    for (std::size_t j = 0; j < moment.mean.size(); ++j) {
      moment.second(i, j) -= double{mean[i]} * double{mean[j]};
    }
  }
  average_rotations(layer.rope, heads.count, layer.key_dim, anchored_offsets(anchor_block),
                    moment.second);
  return moment;
}

MatrixD by_heads(const LayerShape& layer, const std::vector<float>& of, Domain domain, const HeadRange& heads) {
  const auto d = static_cast<std::size_t>(domain == Domain::kValue ? layer.value_dim : layer.key_dim);
  const auto count = static_cast<std::size_t>(heads.count);
  MatrixD metric(count * d, count * d);
  for (std::size_t h = 0; h < count; ++h) {
    const float* q = of.data() + (static_cast<std::size_t>(heads.first) + h) * d * d;
    if (domain == Domain::kPostRopeKey || domain == Domain::kValue) {
      for (std::size_t i = 0; i < d; ++i) {
        for (std::size_t j = 0; j < d; ++j) metric(h * d + i, h * d + j) = q[i * d + j];
      }
      continue;
    }
    for (std::size_t i = 0; i < d; ++i) metric(h * d + i, h * d + i) = q[i * d + i];
    const Rope& rope = layer.rope;
    const std::size_t half = rope.angles.size();
    for (std::size_t i = 0; i < half; ++i) {
      const bool neighbours = rope.pairs == Rope::Pairs::kNeighbours;
      const std::size_t a = h * d + (neighbours ? 2 * i : i);
      const std::size_t b = h * d + (neighbours ? 2 * i + 1 : i + half);
      metric(a, a) = metric(b, b) = 0.5 * (metric(a, a) + metric(b, b));
    }
  }
  return metric;
}

}  // namespace kvspan
