// SPDX-License-Identifier: Apache-2.0
// Sizes of a calibration's arrays (kvspan/calibration.h) that a model's shape asks for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kvspan/cache.h"

namespace kvspan {

// D: numbers of z.
inline std::size_t joint_width(const LayerShape& shape) noexcept {
  return static_cast<std::size_t>(shape.kv_heads) *
         static_cast<std::size_t>(shape.key_dim + shape.value_dim);
}

// How many following layers `layer` of `layers` has moments with, where each has them with up to
// `neighbours`.
constexpr std::size_t following_layers(std::int32_t neighbours, std::size_t layer,
                                       std::size_t layers) noexcept {
  return std::min(static_cast<std::size_t>(std::max(neighbours, 0)), layers - 1 - layer);
}

}  // namespace kvspan
