// SPDX-License-Identifier: Apache-2.0
// Trellis codes to values for NEON: a table of 64 bytes is four registers and one look-up.
#include <arm_neon.h>

#include "codec/trellis.h"

namespace kvspan::detail {
namespace {

template <int kWidth>
void read(std::int8_t* codes, std::size_t quads, std::uint8_t* history) noexcept {
  const int8x16x4_t table = vld1q_s8_x4(trellis_table(kWidth));
  uint8x16_t before[4];
  for (int k = 0; k < 4; ++k) before[k] = vld1q_u8(history + 16 * k);
  for (; quads > 0; --quads, codes += 64) {
    for (int k = 0; k < 4; ++k) {
      const uint8x16_t code = vreinterpretq_u8_s8(vld1q_s8(codes + 16 * k));
      const uint8x16_t index = vandq_u8(vsliq_n_u8(code, before[k], kWidth), vdupq_n_u8(63));
      vst1q_s8(codes + 16 * k, vqtbl4q_s8(table, index));
      before[k] = vsliq_n_u8(code, before[k], 1);
    }
  }
  for (int k = 0; k < 4; ++k) vst1q_u8(history + 16 * k, before[k]);
}

}  // namespace

const TrellisReads kTrellisReadsNeon = {nullptr, read<1>, read<2>, read<3>,
                                        read<4>, read<5>, read<6>};

}  // namespace kvspan::detail
