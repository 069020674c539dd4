// SPDX-License-Identifier: Apache-2.0
// Second moments of one kind of vector, out of a calibration's.
#pragma once

#include <cstdint>
#include <string_view>

#include "kvspan/calibration.h"
#include "linalg/matrix.h"

namespace kvspan {

enum class Side : std::uint8_t {
  kKeyPre,       // keys before RoPE
  kKeyPost,      // after
  kKeyAnchored,  // turned to the middle of their block of `anchor` positions
  kValue,
};
std::string_view name_of(Side side) noexcept;                      // "key_pre", ..
std::int32_t dim_of(const LayerShape& shape, Side side) noexcept;  // of one head

struct MomentChoice {
  std::int32_t anchor = 0;  // positions of a block; only kKeyAnchored needs it
  bool centred = false;     // covariance instead of second moment; means are taken off before RoPE
                            // for anchored keys, as codes do
};

// [heads * dim, heads * dim], all heads of the layer.
MatrixD layer_moment(const LayerShape& shape, const LayerCalibration& layer, Side side,
                     const MomentChoice& choice);
// Keys before RoPE, or anchored where choice.anchor > 0, and values after them: [D, D].
MatrixD key_value_moment(const LayerShape& shape, const LayerCalibration& layer,
                         const MomentChoice& choice);
// The block of one head.
MatrixD head_block(const MatrixD& moment, std::size_t head, std::size_t dim);

}  // namespace kvspan
