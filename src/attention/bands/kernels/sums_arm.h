// SPDX-License-Identifier: Apache-2.0
// Sums of integer products in Arm's kernels of bands, as floats.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "attention/bands/kernels/bands_kernels_body.h"

namespace kvspan::detail {

// Sums that start as the bits of 1.5 * 2^23 are such floats plus the sum, while that is below 2^22:
// conversions would take a pipe for two cycles each.
inline constexpr std::int32_t kSumBits = 0x4b400000;
inline constexpr std::int32_t kSumQuads = 64;  // 256 products of bytes below 2^14

[[gnu::always_inline]] inline float32x4_t end_of_sum(int32x4_t sum, bool biased) noexcept {
  return biased ? vsubq_f32(vreinterpretq_f32_s32(sum), vdupq_n_f32(kNearest)) : vcvtq_f32_s32(sum);
}

}  // namespace kvspan::detail
