// SPDX-License-Identifier: Apache-2.0
// Bands unpacking for AVX-512: a quad of 64 codes is one register. How a trellis table of 64 bytes is
// looked up is the including file's: Table(table) once, then at(indices), of each byte its lowest
// six bits. Included by files compiled for different instruction sets, so that all of it is in an
// unnamed namespace.
#pragma once

#include <immintrin.h>

#include "codec/bands/bands_pack.h"

namespace kvspan::detail {
namespace {

inline __m512i bytes(int value) {
  return _mm512_set1_epi8(static_cast<char>(value));
}

// Bits of `a` where `mask` has ones, of `b` elsewhere.
inline __m512i select(__m512i mask, __m512i a, __m512i b) {
  return _mm512_ternarylogic_epi64(mask, a, b, 0xca);
}

// A plane's fields, each with its lowest bit at bit kTo of its code's byte; what other bits of the
// bytes hold is not told. Fields stay within their bytes, so 64 bits are turned at a time.
template <int kTo>
inline __m512i one_bit(const std::uint8_t* p) {
  long long plane;
  __builtin_memcpy(&plane, p, 8);
  return _mm512_rorv_epi64(
      _mm512_set1_epi64(plane),
      _mm512_setr_epi64(-kTo, 1 - kTo, 2 - kTo, 3 - kTo, 4 - kTo, 5 - kTo, 6 - kTo, 7 - kTo));
}
template <int kTo>
inline __m512i two_bits(const std::uint8_t* p) {
  const __m512i plane =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_rorv_epi64(
      plane, _mm512_setr_epi64(-kTo, -kTo, 2 - kTo, 2 - kTo, 4 - kTo, 4 - kTo, 6 - kTo, 6 - kTo));
}
template <int kTo>
inline __m512i four_bits(const std::uint8_t* p) {
  const __m512i plane = _mm512_permutexvar_epi64(
      _mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3),
      _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
  return _mm512_rorv_epi64(
      plane, _mm512_setr_epi64(-kTo, -kTo, 4 - kTo, 4 - kTo, -kTo, -kTo, 4 - kTo, 4 - kTo));
}

// The codes of a quad in the lowest kWidth bits of their bytes; other bits hold anything.
template <int kWidth>
inline __m512i fields(const std::uint8_t* p) {
  if constexpr (kWidth == 1) {
    return one_bit<0>(p);
  } else if constexpr (kWidth == 2) {
    return two_bits<0>(p);
  } else if constexpr (kWidth == 3) {
    return select(bytes(4), one_bit<2>(p + 16), two_bits<0>(p));
  } else if constexpr (kWidth == 4) {
    return four_bits<0>(p);
  } else if constexpr (kWidth == 5) {
    return select(bytes(16), one_bit<4>(p + 32), four_bits<0>(p));
  } else if constexpr (kWidth == 6) {
    return select(bytes(3), two_bits<0>(p + 32), four_bits<2>(p));
  } else {
    return _mm512_loadu_si512(p);
  }
}

template <int kWidth>
void unpack(const std::uint8_t* in, std::size_t quads, std::int8_t* out) noexcept {
  const __m512i low = bytes((1 << kWidth) - 1), sign = bytes(1 << (kWidth - 1));
  for (; quads > 0; --quads, in += 8 * kWidth, out += kBandCodes) {
    const __m512i code = _mm512_and_si512(fields<kWidth>(in), low);
    _mm512_storeu_si512(out, _mm512_sub_epi8(_mm512_xor_si512(code, sign), sign));
  }
}

template <class Table, int kWidth>
void read(const std::uint8_t* packed, std::size_t quads, std::uint8_t* history,
          std::int8_t* out) noexcept {
  const Table table(trellis_table(kWidth));
  const __m512i low = bytes((1 << kWidth) - 1), lowest = bytes(1);
  __m512i before = _mm512_loadu_si512(history);
  for (; quads > 0; --quads, packed += 8 * kWidth, out += kBandCodes) {
    const __m512i code = fields<kWidth>(packed);
    // What a shift of pairs of bytes brings in from the lower byte falls under the code.
    const __m512i index = select(low, code, _mm512_slli_epi16(before, kWidth));
    _mm512_storeu_si512(out, table.at(index));
    before = select(lowest, code, _mm512_add_epi8(before, before));
  }
  _mm512_storeu_si512(history, before);
}

template <class Table>
inline constexpr BandsKernels::Reads kReads = {nullptr,        read<Table, 1>, read<Table, 2>, read<Table, 3>,
                                               read<Table, 4>, read<Table, 5>, read<Table, 6>};

}  // namespace
}  // namespace kvspan::detail
