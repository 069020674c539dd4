// SPDX-License-Identifier: Apache-2.0
// Packed trellis codes to values for NEON, 64 of a quad at a time as four registers.
//
// A table of 64 bytes is four registers and one look-up, which takes three turns of the vector
// pipes; the rest must be little. So for codes of up to 4 bits the index of T_w is kept the other
// way round: the code on top, below it the lowest bits of earlier codes, the newest highest. Then
// the index of the quad before, shifted right by one, is right but for the new code, which one bit
// select puts in: neither masks nor signs, and no history beside the index. Between ranges of quads
// the history is handed on with the newest bit on top of a byte.
#include <arm_neon.h>

#include "base/unrolled.h"
#include "codec/bands/bands_pack.h"

namespace kvspan::detail {
namespace {

struct Quad {
  uint8x16_t v[4];
};

#define KVSPAN_EACH [&]<int k>() __attribute__((always_inline))

// A register shifted left by kBy, or right by -kBy.
template <int kBy>
[[gnu::always_inline]] inline uint8x16_t moved(uint8x16_t x) {
  if constexpr (kBy > 0) return vshlq_n_u8(x, kBy);
  if constexpr (kBy < 0) return vshrq_n_u8(x, -kBy);
  return x;
}

// `fields` where the mask has ones, x elsewhere.
[[gnu::always_inline]] inline uint8x16_t put(uint8x16_t x, std::uint8_t mask, uint8x16_t fields) {
  return vbslq_u8(vdupq_n_u8(mask), fields, x);
}

// Fields of a plane with their lowest bits at kAt; anything around them.
template <int kAt>
[[gnu::always_inline]] inline void four_bits(const std::uint8_t* p, Quad& f) {
  const uint8x16_t x = vld1q_u8(p), y = vld1q_u8(p + 16);
  f = {{moved<kAt>(x), moved<kAt - 4>(x), moved<kAt>(y), moved<kAt - 4>(y)}};
}
template <int kAt>
[[gnu::always_inline]] inline void two_bits(const std::uint8_t* p, Quad& f) {
  const uint8x16_t x = vld1q_u8(p);
  f = {{moved<kAt>(x), moved<kAt - 2>(x), moved<kAt - 4>(x), moved<kAt - 6>(x)}};
}
// All bits of a byte are the field.
[[gnu::always_inline]] inline void one_bit(const std::uint8_t* p, Quad& f) {
  const uint8x8_t eight = vld1_u8(p);
  const uint8x16_t x = vcombine_u8(eight, eight);
  const uint8x16_t first = vcombine_u8(vdup_n_u8(1), vdup_n_u8(2));
  unrolled<4>(KVSPAN_EACH { f.v[k] = vtstq_u8(x, vshlq_n_u8(first, 2 * k)); });
}

// T_w by the index as it is kept here.
template <int kWidth>
const std::array<std::int8_t, 64>& turned_table() {
  static const std::array<std::int8_t, 64> kTable = [] {
    std::array<std::int8_t, 64> table{};
    constexpr int kMemory = kTrellisMaxBits - kWidth;
    for (int index = 0; index < 64; ++index) {
      int usual = index >> kMemory;  // the code
      for (int j = 0; j < kMemory; ++j) {
        usual |= (index >> (kMemory - 1 - j) & 1) << (kWidth + j);
      }
      table[static_cast<std::size_t>(index)] = trellis_table(kWidth)[usual];
    }
    return table;
  }();
  return kTable;
}

// Where the lowest bit of a code lies in the index. That of 4 bits is kept two bits higher than it
// is looked up: the bits below are history that shorter codes after it need.
constexpr int lowest_bit(int width) {
  return (width == 4 ? 8 : 6) - width;
}

// The index of a quad from that of the quad before.
template <int kWidth>
[[gnu::always_inline]] inline void advance(const std::uint8_t* p, Quad& index) {
  constexpr int kAt = lowest_bit(kWidth), kFirst = (kWidth == 1 ? 1 : kWidth == 4 ? 15 : 3) << kAt;
  Quad f, top;
  if constexpr (kWidth == 1) one_bit(p, f);
  if constexpr (kWidth == 2 || kWidth == 3) two_bits<kAt>(p, f);
  if constexpr (kWidth == 3) one_bit(p + 16, top);
  if constexpr (kWidth == 4) four_bits<kAt>(p, f);
  unrolled<4>(KVSPAN_EACH {
    index.v[k] = put(vshrq_n_u8(index.v[k], 1), kFirst, f.v[k]);
    if constexpr (kWidth == 3) index.v[k] = put(index.v[k], 4 << kAt, top.v[k]);
  });
}

template <int kWidth>
[[gnu::always_inline]] inline void look_up(const int8x16x4_t& table, const Quad& index,
                                           std::int8_t* out) {
  constexpr int kAbove = lowest_bit(kWidth) + kWidth - kTrellisMaxBits;
  unrolled<4>(
      KVSPAN_EACH { vst1q_s8(out + 16 * k, vqtbl4q_s8(table, moved<-kAbove>(index.v[k]))); });
}

// 1 to 4 bits.
template <int kWidth>
void read(const std::uint8_t* in, std::size_t quads, std::uint8_t* history,
          std::int8_t* out) noexcept {
  constexpr int kShift = 7 - lowest_bit(kWidth);
  const int8x16x4_t table = vld1q_s8_x4(turned_table<kWidth>().data());
  Quad index;
  unrolled<4>(KVSPAN_EACH { index.v[k] = moved<-kShift>(vld1q_u8(history + 16 * k)); });
  for (; quads > 1; --quads, in += 8 * kWidth, out += kBandCodes) {
    advance<kWidth>(in, index);
    look_up<kWidth>(table, index, out);
  }
  // The last step drops a bit of history that a width after 3 may need.
  const Quad before = index;
  advance<kWidth>(in, index);
  look_up<kWidth>(table, index, out);
  unrolled<4>(KVSPAN_EACH {
    vst1q_u8(history + 16 * k, vsliq_n_u8(moved<kShift - 1>(before.v[k]), index.v[k], kShift));
  });
}

// 5 or 6 bits: at most one bit of history has a say. Few components have so many.
template <int kWidth>
void read_long(const std::uint8_t* in, std::size_t quads, std::uint8_t* history,
               std::int8_t* out) noexcept {
  const int8x16x4_t table = vld1q_s8_x4(trellis_table(kWidth));
  Quad h, f, top;
  unrolled<4>(KVSPAN_EACH { h.v[k] = vld1q_u8(history + 16 * k); });
  for (; quads > 0; --quads, in += 8 * kWidth, out += kBandCodes) {
    if constexpr (kWidth == 5) four_bits<0>(in, f), one_bit(in + 32, top);
    if constexpr (kWidth == 6) two_bits<0>(in + 32, f), four_bits<0>(in, top);
    unrolled<4>(KVSPAN_EACH {
      const uint8x16_t newer = vsliq_n_u8(vshrq_n_u8(h.v[k], 1), f.v[k], 7);
      const uint8x16_t index = kWidth == 6
                                   ? vandq_u8(vsliq_n_u8(f.v[k], top.v[k], 2), vdupq_n_u8(63))
                                   : put(put(vshrq_n_u8(h.v[k], 2), 15, f.v[k]), 16, top.v[k]);
      vst1q_s8(out + 16 * k, vqtbl4q_s8(table, index));
      h.v[k] = newer;
    });
  }
  unrolled<4>(KVSPAN_EACH { vst1q_u8(history + 16 * k, h.v[k]); });
}
#undef KVSPAN_EACH

}  // namespace

const BandsKernels::Reads kBandsReadNeon = {nullptr, read<1>,      read<2>,     read<3>,
                                            read<4>, read_long<5>, read_long<6>};

}  // namespace kvspan::detail
