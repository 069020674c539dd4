// SPDX-License-Identifier: Apache-2.0
// Bands packing by the text of bands_pack.h, one code at a time.
#include <algorithm>

#include "codec/bands/bands_pack.h"

namespace kvspan::detail {
namespace {

// A plane of `bits` bits: where field e of 64 lies.
struct Place {
  std::size_t byte, shift;
};
Place place_of(int bits, std::size_t e) {
  switch (bits) {
    case 1:
      return {e % 8, e / 8};
    case 2:
      return {e % 16, 2 * (e / 16)};
    case 4:
      return {16 * (e / 32) + e % 16, 4 * (e / 16 % 2)};
    default:
      return {e, 0};
  }
}

// The planes of a width, in stored order: bits of the plane and the code's lowest bit in it.
struct Plane {
  int bits, lowest;
};
template <int kWidth>
constexpr std::array<Plane, 2> planes() {
  switch (kWidth) {
    case 3:
      return {{{2, 0}, {1, 2}}};
    case 5:
      return {{{4, 0}, {1, 4}}};
    case 6:
      return {{{4, 2}, {2, 0}}};
    default:
      return {{{kWidth, 0}, {0, 0}}};
  }
}

template <int kWidth>
void pack(const std::int8_t* codes, std::size_t quads, std::uint8_t* out) noexcept {
  std::fill(out, out + quads * kWidth * kBandCodes / 8, std::uint8_t{0});
  for (; quads > 0; --quads, codes += kBandCodes) {
    for (const Plane& plane : planes<kWidth>()) {
      if (plane.bits == 0) continue;
      for (std::size_t e = 0; e < kBandCodes; ++e) {
        const int field = (codes[e] & 0xff) >> plane.lowest & ((1 << plane.bits) - 1);
        const Place place = place_of(plane.bits, e);
        out[place.byte] = static_cast<std::uint8_t>(out[place.byte] | field << place.shift);
      }
      out += static_cast<std::size_t>(plane.bits) * kBandCodes / 8;
    }
  }
}

template <int kWidth>
void unpack(const std::uint8_t* in, std::size_t quads, std::int8_t* out) noexcept {
  for (; quads > 0; --quads, out += kBandCodes) {
    std::array<int, kBandCodes> raw{};
    for (const Plane& plane : planes<kWidth>()) {
      if (plane.bits == 0) continue;
      for (std::size_t e = 0; e < kBandCodes; ++e) {
        const Place place = place_of(plane.bits, e);
        raw[e] |= (in[place.byte] >> place.shift & ((1 << plane.bits) - 1)) << plane.lowest;
      }
      in += static_cast<std::size_t>(plane.bits) * kBandCodes / 8;
    }
    constexpr int kSign = 1 << (kWidth - 1);
    for (std::size_t e = 0; e < kBandCodes; ++e) {
      out[e] = static_cast<std::int8_t>((raw[e] ^ kSign) - kSign);
    }
  }
}

template <int kWidth>
void read(const std::uint8_t* in, std::size_t quads, std::uint8_t* history, std::int8_t* out) noexcept {
  unpack<kWidth>(in, quads, out);
  trellis_values(kWidth, out, quads, history);
}

}  // namespace

const BandsKernels kBandsKernelsRef = {
    .pack = {nullptr, pack<1>, pack<2>, pack<3>, pack<4>, pack<5>, pack<6>, nullptr, pack<8>},
    .unpack = {nullptr, unpack<1>, unpack<2>, unpack<3>, unpack<4>, unpack<5>, unpack<6>, nullptr,
               unpack<8>},
    .read = {nullptr, read<1>, read<2>, read<3>, read<4>, read<5>, read<6>},
};

}  // namespace kvspan::detail
