// SPDX-License-Identifier: Apache-2.0
// Bands unpacking for AVX2: 64 codes of a quad as two registers.
#include <immintrin.h>

#include "codec/bands/bands_pack.h"

namespace kvspan::detail {
namespace {

struct Quad {
  __m256i v[2];
};

inline __m256i bytes(int value) {
  return _mm256_set1_epi8(static_cast<char>(value));
}
inline __m256i sign_extend(__m256i fields, int sign) {
  return _mm256_sub_epi8(_mm256_xor_si256(fields, bytes(sign)), bytes(sign));
}

// Two-bit fields: codes 0..31 lie at bits 0 and 2 of the two halves, 32..63 at bits 4 and 6.
inline void two_bits(const std::uint8_t* p, __m256i* f) {
  const __m256i x =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i first = _mm256_srlv_epi64(x, _mm256_set_epi64x(2, 2, 0, 0));
  f[0] = _mm256_and_si256(first, bytes(3));
  f[1] = _mm256_and_si256(_mm256_srli_epi64(first, 4), bytes(3));
}

inline void four_bits(const std::uint8_t* p, __m256i* f) {
  for (int k = 0; k < 2; ++k) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * k));
    f[k] = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(x, 4), x), bytes(15));
  }
}

// 0xff where the one-bit plane has a one: code e is bit e / 8 of byte e % 8.
inline void one_bits(const std::uint8_t* p, __m256i* f) {
  long long word;
  __builtin_memcpy(&word, p, 8);
  const __m256i x = _mm256_set1_epi64x(word);
  const long long ones = 0x0101010101010101;
  const __m256i first = _mm256_set_epi64x(ones << 3, ones << 2, ones << 1, ones);
  const __m256i second = _mm256_slli_epi64(first, 4);
  f[0] = _mm256_cmpeq_epi8(_mm256_and_si256(x, first), first);
  f[1] = _mm256_cmpeq_epi8(_mm256_and_si256(x, second), second);
}

template <int kWidth>
inline Quad load(const std::uint8_t* p) {
  Quad q;
  __m256i a[2], b[2];
  for (int k = 0; k < 2; ++k) {
    if constexpr (kWidth == 8) {
      q.v[k] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * k));
    } else if constexpr (kWidth == 1) {
      if (k == 0) one_bits(p, a);
      q.v[k] = a[k];
    } else if constexpr (kWidth == 2) {
      if (k == 0) two_bits(p, a);
      q.v[k] = sign_extend(a[k], 2);
    } else if constexpr (kWidth == 3) {
      if (k == 0) two_bits(p, a), one_bits(p + 16, b);
      q.v[k] = _mm256_or_si256(a[k], _mm256_and_si256(b[k], bytes(0xfc)));
    } else if constexpr (kWidth == 4) {
      if (k == 0) four_bits(p, a);
      q.v[k] = sign_extend(a[k], 8);
    } else if constexpr (kWidth == 5) {
      if (k == 0) four_bits(p, a), one_bits(p + 32, b);
      q.v[k] = _mm256_or_si256(a[k], _mm256_and_si256(b[k], bytes(0xf0)));
    } else {
      if (k == 0) four_bits(p, a), two_bits(p + 32, b);
      q.v[k] = sign_extend(_mm256_or_si256(_mm256_slli_epi16(a[k], 2), b[k]), 32);
    }
  }
  return q;
}

template <int kWidth>
void unpack(const std::uint8_t* in, std::size_t quads, std::int8_t* out) noexcept {
  for (; quads > 0; --quads, in += 8 * kWidth, out += kBandCodes) {
    const Quad q = load<kWidth>(in);
    for (int k = 0; k < 2; ++k) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * k), q.v[k]);
    }
  }
}

}  // namespace

const std::array<BandsKernels::Unpack, 9> kBandsUnpackAvx2 = {
    nullptr, unpack<1>, unpack<2>, unpack<3>, unpack<4>, unpack<5>, unpack<6>, nullptr, unpack<8>};

}  // namespace kvspan::detail
