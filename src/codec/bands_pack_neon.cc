// SPDX-License-Identifier: Apache-2.0
// Bands unpacking for NEON: 64 codes of a quad as four registers.
#include <arm_neon.h>

#include "codec/bands_pack.h"

namespace kvspan::detail {
namespace {

struct Quad {
  int8x16_t v[4];
};

// Fields at the top of each byte, the rest of the byte zero or not: shifted down they become
// signed.
inline int8x16_t top(uint8x16_t v) {
  return vreinterpretq_s8_u8(v);
}

// Two-bit fields of 16 bytes, moved to the top of their bytes; lower bits are other fields.
inline void two_bit_tops(const std::uint8_t* p, uint8x16_t* f) {
  const uint8x16_t x = vld1q_u8(p);
  f[0] = vshlq_n_u8(x, 6);
  f[1] = vshlq_n_u8(x, 4);
  f[2] = vshlq_n_u8(x, 2);
  f[3] = x;
}

// 0xff where the one-bit plane has a one.
inline void one_bits(const std::uint8_t* p, uint8x16_t* f) {
  const uint8x8_t eight = vld1_u8(p);
  const uint8x16_t x = vcombine_u8(eight, eight);
  const uint8x16_t first = vcombine_u8(vdup_n_u8(1), vdup_n_u8(2));
  f[0] = vtstq_u8(x, first);
  f[1] = vtstq_u8(x, vshlq_n_u8(first, 2));
  f[2] = vtstq_u8(x, vshlq_n_u8(first, 4));
  f[3] = vtstq_u8(x, vshlq_n_u8(first, 6));
}

template <int kWidth>
inline Quad load(const std::uint8_t* p) {
  Quad q;
  uint8x16_t a[4], b[4];
  if constexpr (kWidth == 1) {
    one_bits(p, a);  // v = -1 or 0
    for (int k = 0; k < 4; ++k) q.v[k] = top(a[k]);
  } else if constexpr (kWidth == 2) {
    two_bit_tops(p, a);
    for (int k = 0; k < 4; ++k) q.v[k] = vshrq_n_s8(top(a[k]), 6);
  } else if constexpr (kWidth == 3) {
    two_bit_tops(p, a);
    one_bits(p + 16, b);
    // The low two bits slide in under the sign's copies.
    for (int k = 0; k < 4; ++k) q.v[k] = top(vsriq_n_u8(vshlq_n_u8(b[k], 2), a[k], 6));
  } else if constexpr (kWidth == 8) {
    for (int k = 0; k < 4; ++k) q.v[k] = top(vld1q_u8(p + 16 * k));
  } else {
    for (int k = 0; k < 2; ++k) {  // nibbles at the top
      const uint8x16_t x = vld1q_u8(p + 16 * k);
      a[2 * k] = vshlq_n_u8(x, 4);
      a[2 * k + 1] = x;
    }
    if constexpr (kWidth == 4) {
      for (int k = 0; k < 4; ++k) q.v[k] = vshrq_n_s8(top(a[k]), 4);
    } else if constexpr (kWidth == 5) {
      one_bits(p + 32, b);
      for (int k = 0; k < 4; ++k) q.v[k] = top(vsriq_n_u8(vshlq_n_u8(b[k], 4), a[k], 4));
    } else {
      // Upper four bits signed with two places below them, into which the lower two slide.
      two_bit_tops(p + 32, b);
      for (int k = 0; k < 4; ++k) {
        const int8x16_t high = vshlq_n_s8(vshrq_n_s8(top(a[k]), 4), 2);
        q.v[k] = top(vsriq_n_u8(vreinterpretq_u8_s8(high), b[k], 6));
      }
    }
  }
  return q;
}

template <int kWidth>
void unpack(const std::uint8_t* in, std::size_t quads, std::int8_t* out) noexcept {
  for (; quads > 0; --quads, in += 8 * kWidth, out += kBandCodes) {
    const Quad q = load<kWidth>(in);
    for (int k = 0; k < 4; ++k) vst1q_s8(out + 16 * k, q.v[k]);
  }
}

}  // namespace

const std::array<BandsKernels::Unpack, 9> kBandsUnpackNeon = {
    nullptr, unpack<1>, unpack<2>, unpack<3>, unpack<4>, unpack<5>, unpack<6>, nullptr, unpack<8>};

}  // namespace kvspan::detail
