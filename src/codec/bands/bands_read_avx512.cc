// SPDX-License-Identifier: Apache-2.0
// Bands unpacking for AVX-512 as the first processors have it: a byte shuffle reaches 16 bytes of a
// trellis table, so that four of them make a look-up.
#include "codec/bands/bands_read_avx512.h"

namespace kvspan::detail {
namespace {

class ShuffledTable {
 public:
  explicit ShuffledTable(const std::int8_t* table) noexcept {
    for (std::size_t i = 0; i < 4; ++i) {
      parts_[i] = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table + 16 * i)));
    }
  }
  __m512i at(__m512i index) const noexcept {
    const __mmask64 odd = _mm512_test_epi8_mask(index, bytes(16)), upper = _mm512_test_epi8_mask(index, bytes(32));
    const __m512i place = _mm512_and_si512(index, bytes(15));
    const __m512i low = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(parts_[0], place), odd, parts_[1], place);
    const __m512i high = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(parts_[2], place), odd, parts_[3], place);
    return _mm512_mask_mov_epi8(low, upper, high);
  }

 private:
  __m512i parts_[4];
};

}  // namespace

const std::array<BandsKernels::Unpack, 9> kBandsUnpackAvx512 = {
    nullptr, unpack<1>, unpack<2>, unpack<3>, unpack<4>, unpack<5>, unpack<6>, nullptr, unpack<8>};

const BandsKernels::Reads kBandsReadAvx512 = kReads<ShuffledTable>;

}  // namespace kvspan::detail
