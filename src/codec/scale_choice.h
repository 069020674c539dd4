// SPDX-License-Identifier: Apache-2.0
// Scale and offset of one unit of numbers from its range, as they will be stored (codec.h has the
// formulas). Internal to the codec room.
#pragma once

#include <utility>

#include "codec/codec_spec.h"

namespace kvspan {

inline constexpr float kHalfMax = 65504.0f;

struct StoredScale {
  float scale = 0;    // a value of the storage type; >= 0 but for q4_0, where only `fits` is given
  float offset = 0;   // asymmetric only; a value of the storage type
  bool fits = false;  // false: beyond the storage type's range
};

// low <= high, both finite and at most 2^126 in magnitude.
StoredScale choose_scale(const CodecSpec& spec, float low, float high) noexcept;

// Smallest and largest code.
std::pair<int, int> code_range(const CodecSpec& spec) noexcept;

// x^ = scale (v + 1/2): no level at zero.
bool has_middle_levels(const CodecSpec& spec) noexcept;

}  // namespace kvspan
