// SPDX-License-Identifier: Apache-2.0
#include <arm_neon.h>

#include "cache/rows/narrow.h"

namespace kvspan::detail {

void narrow_to_half_neon(const float* from, std::size_t count, Half* to) noexcept {
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    vst1_u16(&to[i].bits, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i))));
  }
  for (; i < count; ++i) {
    to[i].bits = vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(from[i]))), 0);
  }
}

}  // namespace kvspan::detail
