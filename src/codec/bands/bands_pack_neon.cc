// SPDX-License-Identifier: Apache-2.0
// Bands unpacking for NEON: 64 codes of a quad as four registers.
#include <arm_neon.h>

#include "codec/bands/bands_pack.h"

namespace kvspan::detail {
namespace {

struct Quad {
  int8x16_t v[4];
};

inline int8x16_t as_signed(uint8x16_t v) {
  return vreinterpretq_s8_u8(v);
}

// Fields are cut out and extended by table look-ups on nibbles: shifts go through one pipe of the usual
// Arm cores, look-ups and masks in two.
alignas(16) constexpr std::int8_t kLowPair[16] = {0, 1, -2, -1, 0, 1, -2, -1,
                                                  0, 1, -2, -1, 0, 1, -2, -1};
alignas(16) constexpr std::int8_t kHighPair[16] = {0,  0,  0,  0,  1,  1,  1,  1,
                                                   -2, -2, -2, -2, -1, -1, -1, -1};
alignas(16) constexpr std::int8_t kNibble[16] = {0,  1,  2,  3,  4,  5,  6,  7,
                                                 -8, -7, -6, -5, -4, -3, -2, -1};
alignas(16) constexpr std::int8_t kNibbleTimes4[16] = {0,   4,   8,   12,  16,  20,  24, 28,
                                                       -32, -28, -24, -20, -16, -12, -8, -4};

// Nibbles of 32 bytes, unsigned, as codes 0..63 of a four-bit plane.
inline void nibbles(const std::uint8_t* p, uint8x16_t* f) {
  for (int k = 0; k < 2; ++k) {
    const uint8x16_t x = vld1q_u8(p + 16 * k);
    f[2 * k] = vandq_u8(x, vdupq_n_u8(15));
    f[2 * k + 1] = vshrq_n_u8(x, 4);
  }
}

// Fields of a two-bit plane through tables for the lower and the upper pair of a nibble.
inline void pairs(const std::uint8_t* p, int8x16_t low, int8x16_t high, int8x16_t* f) {
  const uint8x16_t x = vld1q_u8(p);
  const uint8x16_t a = vandq_u8(x, vdupq_n_u8(15)), b = vshrq_n_u8(x, 4);
  f[0] = vqtbl1q_s8(low, a);
  f[1] = vqtbl1q_s8(high, a);
  f[2] = vqtbl1q_s8(low, b);
  f[3] = vqtbl1q_s8(high, b);
}
inline void signed_pairs(const std::uint8_t* p, int8x16_t* f) {
  pairs(p, vld1q_s8(kLowPair), vld1q_s8(kHighPair), f);
}
inline void unsigned_pairs(const std::uint8_t* p, int8x16_t* f) {
  const int8x16_t mask = vdupq_n_s8(3);
  pairs(p, vandq_s8(vld1q_s8(kLowPair), mask), vandq_s8(vld1q_s8(kHighPair), mask), f);
}

// -1 where the one-bit plane has a one.
inline void one_bits(const std::uint8_t* p, int8x16_t* f) {
  const uint8x8_t eight = vld1_u8(p);
  const uint8x16_t x = vcombine_u8(eight, eight);
  const uint8x16_t first = vcombine_u8(vdup_n_u8(1), vdup_n_u8(2));
  f[0] = as_signed(vtstq_u8(x, first));
  f[1] = as_signed(vtstq_u8(x, vshlq_n_u8(first, 2)));
  f[2] = as_signed(vtstq_u8(x, vshlq_n_u8(first, 4)));
  f[3] = as_signed(vtstq_u8(x, vshlq_n_u8(first, 6)));
}

// `sign` in the bits of mask, `low` in the others: one instruction.
inline int8x16_t above(std::uint8_t mask, int8x16_t sign, int8x16_t low) {
  return vbslq_s8(vdupq_n_u8(mask), sign, low);
}

template <int kWidth>
inline Quad load(const std::uint8_t* p) {
  Quad q;
  int8x16_t a[4];
  uint8x16_t n[4];
  if constexpr (kWidth == 1) {
    one_bits(p, q.v);
  } else if constexpr (kWidth == 2) {
    signed_pairs(p, q.v);
  } else if constexpr (kWidth == 3) {
    unsigned_pairs(p, q.v);
    one_bits(p + 16, a);
    for (int k = 0; k < 4; ++k) q.v[k] = above(0xfc, a[k], q.v[k]);
  } else if constexpr (kWidth == 4) {
    nibbles(p, n);
    for (int k = 0; k < 4; ++k) q.v[k] = vqtbl1q_s8(vld1q_s8(kNibble), n[k]);
  } else if constexpr (kWidth == 5) {
    nibbles(p, n);
    one_bits(p + 32, a);
    for (int k = 0; k < 4; ++k) {
      q.v[k] = above(0xf0, a[k], as_signed(n[k]));
    }
  } else if constexpr (kWidth == 6) {
    nibbles(p, n);
    unsigned_pairs(p + 32, a);
    for (int k = 0; k < 4; ++k) {
      q.v[k] = vorrq_s8(vqtbl1q_s8(vld1q_s8(kNibbleTimes4), n[k]), a[k]);
    }
  } else {
    for (int k = 0; k < 4; ++k) q.v[k] = as_signed(vld1q_u8(p + 16 * k));
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
