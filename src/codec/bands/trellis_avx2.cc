// SPDX-License-Identifier: Apache-2.0
// Trellis codes to values for AVX2: a table of 64 bytes is four shuffles of 16, of which two bits
// of the index choose one.
#include <immintrin.h>

#include "codec/bands/trellis.h"

namespace kvspan::detail {
namespace {

inline __m256i bytes(int value) {
  return _mm256_set1_epi8(static_cast<char>(value));
}

template <int kWidth>
void read(std::int8_t* codes, std::size_t quads, std::uint8_t* history) noexcept {
  __m256i table[4];
  for (int k = 0; k < 4; ++k) {
    table[k] = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(trellis_table(kWidth) + 16 * k)));
  }
  constexpr int kLow = (1 << kWidth) - 1;
  __m256i before[2];
  for (int k = 0; k < 2; ++k) {
    before[k] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(history + 32 * k));
  }
  for (; quads > 0; --quads, codes += 64) {
    for (int k = 0; k < 2; ++k) {
      auto* const place = reinterpret_cast<__m256i*>(codes + 32 * k);
      const __m256i code = _mm256_loadu_si256(place);
      // What a shift of pairs of bytes brings in from the lower byte falls under the code.
      const __m256i index =
          _mm256_or_si256(_mm256_and_si256(_mm256_slli_epi16(before[k], kWidth), bytes(63 & ~kLow)),
                          _mm256_and_si256(code, bytes(kLow)));
      // The top bit of each byte chooses: bit 4 of the index, then bit 5.
      const __m256i fourth = _mm256_slli_epi16(index, 3), fifth = _mm256_slli_epi16(index, 2);
      const __m256i nibble = _mm256_and_si256(index, bytes(15));
      const __m256i lower = _mm256_blendv_epi8(_mm256_shuffle_epi8(table[0], nibble),
                                               _mm256_shuffle_epi8(table[1], nibble), fourth);
      const __m256i upper = _mm256_blendv_epi8(_mm256_shuffle_epi8(table[2], nibble),
                                               _mm256_shuffle_epi8(table[3], nibble), fourth);
      _mm256_storeu_si256(place, _mm256_blendv_epi8(lower, upper, fifth));
      before[k] =
          _mm256_or_si256(_mm256_add_epi8(before[k], before[k]), _mm256_and_si256(code, bytes(1)));
    }
  }
  for (int k = 0; k < 2; ++k) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(history + 32 * k), before[k]);
  }
}

}  // namespace

const TrellisReads kTrellisReadsAvx2 = {nullptr, read<1>, read<2>, read<3>,
                                        read<4>, read<5>, read<6>};

}  // namespace kvspan::detail
