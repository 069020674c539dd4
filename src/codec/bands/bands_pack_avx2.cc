// SPDX-License-Identifier: Apache-2.0
// Bands unpacking for AVX2: 64 codes of a quad as two registers. A trellis table of 64 bytes is looked up by four
// shuffles of 16 bytes. A shuffle gives 0 where the top bit of an index is set, and so where the index is below what
// was taken off: each table but the first holds what has to change in those before it.
#include <immintrin.h>

#include "base/unrolled.h"
#include "codec/bands/bands_pack.h"

namespace kvspan::detail {
namespace {

struct Quad {
  __m256i v[2];
};

inline __m256i load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline void store(void* p, __m256i x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), x);
}
inline __m256i bytes(int value) {
  return _mm256_set1_epi8(static_cast<char>(value));
}

// Two-bit fields: codes 0..31 lie at bits 0 and 2 of the two halves, 32..63 at bits 4 and 6.
inline Quad two_bits(const std::uint8_t* p) {
  const __m256i x = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i first = _mm256_srlv_epi64(x, _mm256_set_epi64x(2, 2, 0, 0));
  return {{_mm256_and_si256(first, bytes(3)), _mm256_and_si256(_mm256_srli_epi64(first, 4), bytes(3))}};
}

inline Quad four_bits(const std::uint8_t* p) {
  Quad f;
  for (int k = 0; k < 2; ++k) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * k));
    f.v[k] = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(x, 4), x), bytes(15));
  }
  return f;
}

// `bits` where the one-bit plane has a one: code e is bit e / 8 of byte e % 8.
inline Quad one_bit(const std::uint8_t* p, int bits) {
  long long word;
  __builtin_memcpy(&word, p, 8);
  const __m256i x = _mm256_set1_epi64x(word);
  const long long ones = 0x0101010101010101;
  const __m256i first = _mm256_set_epi64x(ones << 3, ones << 2, ones << 1, ones);
  Quad f;
  for (int k = 0; k < 2; ++k) {
    const __m256i own = k == 0 ? first : _mm256_slli_epi64(first, 4);
    f.v[k] = _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(x, own), own), bytes(bits));
  }
  return f;
}

inline Quad both(const Quad& a, const Quad& b) {
  return {{_mm256_or_si256(a.v[0], b.v[0]), _mm256_or_si256(a.v[1], b.v[1])}};
}

// The codes of a quad; above their kWidth bits zeros, or if they are kSigned their highest bit.
template <int kWidth, bool kSigned>
inline Quad codes_of(const std::uint8_t* p) {
  constexpr int kTop = (kSigned ? 0xff : 1 << (kWidth - 1)) & ~((1 << (kWidth - 1)) - 1);  // of one bit above others
  if constexpr (kWidth == 8) return {{load(p), load(p + 32)}};
  if constexpr (kWidth == 1) return one_bit(p, kTop);
  if constexpr (kWidth == 3) return both(two_bits(p), one_bit(p + 16, kTop));
  if constexpr (kWidth == 5) return both(four_bits(p), one_bit(p + 32, kTop));
  Quad q;
  if constexpr (kWidth == 2) q = two_bits(p);
  if constexpr (kWidth == 4) q = four_bits(p);
  if constexpr (kWidth == 6) {
    const Quad high = four_bits(p);
    q = both({{_mm256_slli_epi16(high.v[0], 2), _mm256_slli_epi16(high.v[1], 2)}}, two_bits(p + 32));
  }
  if constexpr (kSigned) {
    const __m256i sign = bytes(1 << (kWidth - 1));
    for (__m256i& x : q.v) x = _mm256_sub_epi8(_mm256_xor_si256(x, sign), sign);
  }
  return q;
}

template <int kWidth>
void unpack(const std::uint8_t* in, std::size_t quads, std::int8_t* out) noexcept {
  for (; quads > 0; --quads, in += 8 * kWidth, out += kBandCodes) {
    const Quad q = codes_of<kWidth, true>(in);
    store(out, q.v[0]);
    store(out + 32, q.v[1]);
  }
}

class ShuffledTable {
 public:
  explicit ShuffledTable(const std::int8_t* table) {
    __m256i before = _mm256_setzero_si256();
    unrolled<4>([&]<int i>() {
      const __m256i part =
          _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table + 16 * i)));
      changes_[i] = _mm256_xor_si256(part, before);
      before = part;
    });
  }
  // Of indices below 64.
  __m256i at(__m256i index) const {
    __m256i found = _mm256_shuffle_epi8(changes_[0], index);
    unrolled<3>([&]<int i>() __attribute__((always_inline)) {
      index = _mm256_sub_epi8(index, bytes(16));
      found = _mm256_xor_si256(found, _mm256_shuffle_epi8(changes_[i + 1], index));
    });
    return found;
  }

 private:
  __m256i changes_[4];
};

// history: the lowest bits of earlier codes, the newest lowest.
template <int kWidth>
void read(const std::uint8_t* in, std::size_t quads, std::uint8_t* history, std::int8_t* out) noexcept {
  constexpr int kLow = (1 << kWidth) - 1;
  const ShuffledTable table(trellis_table(kWidth));
  Quad before = {{load(history), load(history + 32)}};
  for (; quads > 0; --quads, in += 8 * kWidth, out += kBandCodes) {
    const Quad code = codes_of<kWidth, false>(in);
    unrolled<2>([&]<int k>() __attribute__((always_inline)) {
      const __m256i twice = _mm256_add_epi8(before.v[k], before.v[k]);
      // What a shift of pairs of bytes brings in from the lower byte falls under the code.
      const __m256i moved = kWidth == 1 ? twice : _mm256_slli_epi16(before.v[k], kWidth);
      const __m256i index = _mm256_or_si256(_mm256_and_si256(moved, bytes(63 & ~kLow)), code.v[k]);
      before.v[k] = _mm256_or_si256(twice, kWidth == 1 ? code.v[k] : _mm256_and_si256(code.v[k], bytes(1)));
      store(out + 32 * k, table.at(index));
    });
  }
  store(history, before.v[0]);
  store(history + 32, before.v[1]);
}

}  // namespace

const std::array<BandsKernels::Unpack, 9> kBandsUnpackAvx2 = {
    nullptr, unpack<1>, unpack<2>, unpack<3>, unpack<4>, unpack<5>, unpack<6>, nullptr, unpack<8>};

const BandsKernels::Reads kBandsReadAvx2 = {nullptr, read<1>, read<2>, read<3>, read<4>, read<5>, read<6>};

}  // namespace kvspan::detail
