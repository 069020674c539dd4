// SPDX-License-Identifier: Apache-2.0
// Codec loops for AVX2 with FMA and F16C. Whole chunks of 32 here, tails through the reference.
// Only intrinsics and functions of this file: an inline function shared with other files could end
// up compiled for this instruction set there.
#include <immintrin.h>

#include "codec/kernels.h"

namespace kvspan::detail {
namespace {

inline __m256i load_vector(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline void store_vector(void* p, __m256i v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}

// Extends the sign of fields of which `top` is the highest bit.
inline __m256i sign_extend(__m256i fields, char top) {
  const __m256i t = _mm256_set1_epi8(top);
  return _mm256_sub_epi8(_mm256_xor_si256(fields, t), t);
}
// The four 64-bit lanes joined by or.
inline __m128i join_quarters(__m256i v) {
  const __m128i halves = _mm_or_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  return _mm_or_si128(halves, _mm_unpackhi_epi64(halves, halves));
}

// Each width: a chunk's 32 codes as bytes of one vector.
struct Int8 {
  static constexpr std::size_t kBytes = 32;
  static const PackKernels& tail() { return kCodecKernelsRef.int8; }
  static __m256i load(const std::uint8_t* p) { return load_vector(p); }
  static void store(__m256i c, std::uint8_t* p) { store_vector(p, c); }
};

struct Int4 {
  static constexpr std::size_t kBytes = 16;
  static const PackKernels& tail() { return kCodecKernelsRef.int4; }
  static __m256i load(const std::uint8_t* p) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i both = _mm256_set_m128i(_mm_srli_epi16(v, 4), v);
    return sign_extend(_mm256_and_si256(both, _mm256_set1_epi8(15)), 8);
  }
  static void store(__m256i c, std::uint8_t* p) {
    const __m256i fields = _mm256_and_si256(c, _mm256_set1_epi8(15));
    const __m128i high = _mm_slli_epi16(_mm256_extracti128_si256(fields, 1), 4);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_or_si128(_mm256_castsi256_si128(fields), high));
  }
};

inline __m256i two_bit_shifts() {
  return _mm256_set_epi64x(6, 4, 2, 0);
}
inline __m256i load_two_bits(const std::uint8_t* p) {
  long long word;
  __builtin_memcpy(&word, p, 8);
  const __m256i spread = _mm256_srlv_epi64(_mm256_set1_epi64x(word), two_bit_shifts());
  return _mm256_and_si256(spread, _mm256_set1_epi8(3));
}
inline void store_two_bits(__m256i c, std::uint8_t* p) {
  const __m256i fields = _mm256_and_si256(c, _mm256_set1_epi8(3));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p),
                   join_quarters(_mm256_sllv_epi64(fields, two_bit_shifts())));
}

struct Int2 {
  static constexpr std::size_t kBytes = 8;
  static const PackKernels& tail() { return kCodecKernelsRef.int2; }
  static __m256i load(const std::uint8_t* p) { return sign_extend(load_two_bits(p), 2); }
  static void store(__m256i c, std::uint8_t* p) { store_two_bits(c, p); }
};

struct Int3 {
  static constexpr std::size_t kBytes = 12;
  static const PackKernels& tail() { return kCodecKernelsRef.int3; }
  // Lane l tests bit l / 4 of byte l % 4.
  static __m256i bits() {
    return _mm256_sllv_epi32(_mm256_set1_epi32(0x01010101),
                             _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
  }
  static __m256i load(const std::uint8_t* p) {
    int word;
    __builtin_memcpy(&word, p + 8, 4);
    const __m256i mask = bits();
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_set1_epi32(word), mask), mask);
    return _mm256_or_si256(load_two_bits(p),
                           _mm256_and_si256(set, _mm256_set1_epi8(static_cast<char>(0xfc))));
  }
  static void store(__m256i c, std::uint8_t* p) {
    store_two_bits(c, p);
    const __m256i negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), c);
    const __m128i two = join_quarters(_mm256_and_si256(negative, bits()));
    const int word = _mm_cvtsi128_si32(_mm_or_si128(two, _mm_srli_epi64(two, 32)));
    __builtin_memcpy(p + 8, &word, 4);
  }
};

template <class Width>
void pack(const std::int8_t* codes, std::size_t n, std::uint8_t* packed) noexcept {
  for (; n >= kCodecChunk; n -= kCodecChunk, codes += kCodecChunk, packed += Width::kBytes) {
    Width::store(load_vector(codes), packed);
  }
  if (n != 0) Width::tail().pack(codes, n, packed);
}

template <class Width>
void unpack(const std::uint8_t* packed, std::size_t n, std::int8_t* codes) noexcept {
  for (; n >= kCodecChunk; n -= kCodecChunk, codes += kCodecChunk, packed += Width::kBytes) {
    store_vector(codes, Width::load(packed));
  }
  if (n != 0) Width::tail().unpack(packed, n, codes);
}

// 32 codes to floats; `affine(i, v)` maps the eight from lane 8 i.
template <class Affine>
inline void widen(__m256i codes, float* out, Affine affine) {
  const __m128i a = _mm256_castsi256_si128(codes), b = _mm256_extracti128_si256(codes, 1);
  const auto floats = [](__m128i v) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)); };
  _mm256_storeu_ps(out, affine(0, floats(a)));
  _mm256_storeu_ps(out + 8, affine(1, floats(_mm_srli_si128(a, 8))));
  _mm256_storeu_ps(out + 16, affine(2, floats(b)));
  _mm256_storeu_ps(out + 24, affine(3, floats(_mm_srli_si128(b, 8))));
}

template <class Width>
void decode_chunks(const std::uint8_t* packed, std::size_t n, const float* scale,
                   const float* offset, float* out) noexcept {
  for (; n >= kCodecChunk; n -= kCodecChunk, out += kCodecChunk, packed += Width::kBytes) {
    const __m256 s = _mm256_set1_ps(*scale++), o = _mm256_set1_ps(*offset++);
    widen(Width::load(packed), out, [&](int, __m256 v) { return _mm256_fmadd_ps(v, s, o); });
  }
  if (n != 0) Width::tail().decode_chunks(packed, n, scale, offset, out);
}

template <class Width>
void decode_columns(const std::uint8_t* packed, std::size_t n, const float* scale,
                    const float* offset, float* out) noexcept {
  for (; n >= kCodecChunk; n -= kCodecChunk, out += kCodecChunk, packed += Width::kBytes) {
    widen(Width::load(packed), out, [&](int i, __m256 v) {
      return _mm256_fmadd_ps(v, _mm256_loadu_ps(scale + 8 * i), _mm256_loadu_ps(offset + 8 * i));
    });
    scale += kCodecChunk;
    offset += kCodecChunk;
  }
  if (n != 0) Width::tail().decode_columns(packed, n, scale, offset, out);
}

// 32 numbers, already integers within int8 as `whole(i)` gives the eight from lane 8 i, to bytes.
template <class Whole>
inline void store_bytes(Whole whole, std::int8_t* codes) {
  const __m256i a = _mm256_packs_epi32(whole(0), whole(1));
  const __m256i b = _mm256_packs_epi32(whole(2), whole(3));
  // The packs work within 128-bit lanes; this puts the groups of four back in order.
  const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
  store_vector(codes, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order));
}

void quantize_chunks(const float* x, std::size_t n, const float* inverse, const float* offset,
                     int lowest, int highest, std::int8_t* codes) noexcept {
  const __m256 low = _mm256_set1_ps(static_cast<float>(lowest));
  const __m256 high = _mm256_set1_ps(static_cast<float>(highest));
  for (; n >= kCodecChunk; n -= kCodecChunk, x += kCodecChunk, codes += kCodecChunk) {
    const __m256 f = _mm256_set1_ps(*inverse++), o = _mm256_set1_ps(*offset++);
    store_bytes(
        [&](int i) {
          const __m256 y = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + 8 * i), o), f);
          return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(y, low), high));
        },
        codes);
  }
  if (n != 0) kCodecKernelsRef.quantize_chunks(x, n, inverse, offset, lowest, highest, codes);
}

void quantize_columns(const float* x, std::size_t n, const float* inverse, const float* offset,
                      int lowest, int highest, std::int8_t* codes) noexcept {
  const __m256 low = _mm256_set1_ps(static_cast<float>(lowest));
  const __m256 high = _mm256_set1_ps(static_cast<float>(highest));
  for (; n >= kCodecChunk; n -= kCodecChunk, x += kCodecChunk, codes += kCodecChunk) {
    store_bytes(
        [&](int i) {
          const __m256 d =
              _mm256_sub_ps(_mm256_loadu_ps(x + 8 * i), _mm256_loadu_ps(offset + 8 * i));
          const __m256 y = _mm256_mul_ps(d, _mm256_loadu_ps(inverse + 8 * i));
          return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(y, low), high));
        },
        codes);
    inverse += kCodecChunk;
    offset += kCodecChunk;
  }
  if (n != 0) kCodecKernelsRef.quantize_columns(x, n, inverse, offset, lowest, highest, codes);
}

void quantize_midrise(const float* x, std::size_t n, const float* inverse, const float* lowest,
                      const float* highest, std::int8_t* codes) noexcept {
  for (; n >= kCodecChunk; n -= kCodecChunk, x += kCodecChunk, codes += kCodecChunk) {
    store_bytes(
        [&](int i) {
          const __m256 y =
              _mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_loadu_ps(inverse + 8 * i));
          const __m256 above = _mm256_max_ps(_mm256_floor_ps(y), _mm256_loadu_ps(lowest + 8 * i));
          return _mm256_cvtps_epi32(_mm256_min_ps(above, _mm256_loadu_ps(highest + 8 * i)));
        },
        codes);
    inverse += kCodecChunk;
    lowest += kCodecChunk;
    highest += kCodecChunk;
  }
  if (n != 0) kCodecKernelsRef.quantize_midrise(x, n, inverse, lowest, highest, codes);
}

// The eight lanes folded by `join` (commutative).
template <class Join>
inline float fold(__m256 v, Join join) {
  __m128 h = join(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  h = join(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(join(h, _mm_movehdup_ps(h)));
}
inline __m128 lesser(__m128 a, __m128 b) {
  return _mm_min_ps(a, b);
}
inline __m128 greater(__m128 a, __m128 b) {
  return _mm_max_ps(a, b);
}
inline __m128 plus(__m128 a, __m128 b) {
  return _mm_add_ps(a, b);
}

std::uint32_t max_magnitude(const float* x, std::size_t n) noexcept {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i a = _mm256_setzero_si256(), b = a;
  for (; n >= 16; n -= 16, x += 16) {  // signed comparison: magnitudes have no sign bit
    a = _mm256_max_epi32(a, _mm256_and_si256(load_vector(x), magnitude));
    b = _mm256_max_epi32(b, _mm256_and_si256(load_vector(x + 8), magnitude));
  }
  a = _mm256_max_epi32(a, b);
  __m128i h = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
  h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1));
  const auto most = static_cast<std::uint32_t>(_mm_cvtsi128_si32(h));
  const std::uint32_t rest = kCodecKernelsRef.max_magnitude(x, n);
  return most > rest ? most : rest;
}

void widen_range(const float* x, std::size_t n, float* low, float* high) noexcept {
  __m256 a = _mm256_set1_ps(*low), b = _mm256_set1_ps(*high);
  for (; n >= 8; n -= 8, x += 8) {
    a = _mm256_min_ps(a, _mm256_loadu_ps(x));
    b = _mm256_max_ps(b, _mm256_loadu_ps(x));
  }
  *low = fold(a, lesser);
  *high = fold(b, greater);
  kCodecKernelsRef.widen_range(x, n, low, high);
}

void widen_columns(const float* x, std::size_t n, float* low, float* high) noexcept {
  for (; n >= 8; n -= 8, x += 8, low += 8, high += 8) {
    const __m256 v = _mm256_loadu_ps(x);
    _mm256_storeu_ps(low, _mm256_min_ps(_mm256_loadu_ps(low), v));
    _mm256_storeu_ps(high, _mm256_max_ps(_mm256_loadu_ps(high), v));
  }
  kCodecKernelsRef.widen_columns(x, n, low, high);
}

void residual(const float* x, const float* y, std::size_t n, Residual* r) noexcept {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 sum[2], most[2];
  for (int k = 0; k < 2; ++k) sum[k] = most[k] = _mm256_setzero_ps();
  for (; n >= 16; n -= 16, x += 16, y += 16) {
    for (int k = 0; k < 2; ++k) {
      const __m256 d = _mm256_sub_ps(_mm256_loadu_ps(x + 8 * k), _mm256_loadu_ps(y + 8 * k));
      sum[k] = _mm256_fmadd_ps(d, d, sum[k]);
      most[k] = _mm256_max_ps(most[k], _mm256_andnot_ps(sign, d));
    }
  }
  r->squares += static_cast<double>(fold(_mm256_add_ps(sum[0], sum[1]), plus));
  const float top = fold(_mm256_max_ps(most[0], most[1]), greater);
  r->largest = top > r->largest ? top : r->largest;
  kCodecKernelsRef.residual(x, y, n, r);
}

void f32_to_f16(const float* x, std::size_t n, Half* out) noexcept {
  for (; n >= 8; n -= 8, x += 8, out += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT));
  }
  kCodecKernelsRef.f32_to_f16(x, n, out);
}

void f16_to_f32(const Half* x, std::size_t n, float* out) noexcept {
  for (; n >= 8; n -= 8, x += 8, out += 8) {
    _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
  }
  for (; n > 0; --n, ++x, ++out) *out = _cvtsh_ss(x->bits);  // scales of a row are few
}

// Round to nearest, ties to even, in integers; a NaN keeps its upper bits and stays one.
inline __m256i bfloat(__m256i bits) {
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}

void f32_to_bf16(const float* x, std::size_t n, BFloat16* out) noexcept {
  for (; n >= 16; n -= 16, x += 16, out += 16) {
    const __m256i both = _mm256_packus_epi32(bfloat(load_vector(x)), bfloat(load_vector(x + 8)));
    store_vector(out, _mm256_permute4x64_epi64(both, 0xd8));
  }
  kCodecKernelsRef.f32_to_bf16(x, n, out);
}

void bf16_to_f32(const BFloat16* x, std::size_t n, float* out) noexcept {
  for (; n >= 8; n -= 8, x += 8, out += 8) {
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
    store_vector(out, _mm256_slli_epi32(_mm256_cvtepu16_epi32(b), 16));
  }
  kCodecKernelsRef.bf16_to_f32(x, n, out);
}

template <class Width>
constexpr PackKernels pack_kernels() {
  return {pack<Width>, unpack<Width>, decode_chunks<Width>, decode_columns<Width>};
}

}  // namespace

const CodecKernels kCodecKernelsAvx2 = {
    .int8 = pack_kernels<Int8>(),
    .int4 = pack_kernels<Int4>(),
    .int3 = pack_kernels<Int3>(),
    .int2 = pack_kernels<Int2>(),
    .quantize_chunks = quantize_chunks,
    .quantize_columns = quantize_columns,
    .quantize_midrise = quantize_midrise,
    .max_magnitude = max_magnitude,
    .widen_range = widen_range,
    .widen_columns = widen_columns,
    .residual = residual,
    .f32_to_f16 = f32_to_f16,
    .f16_to_f32 = f16_to_f32,
    .f32_to_bf16 = f32_to_bf16,
    .bf16_to_f32 = bf16_to_f32,
};

}  // namespace kvspan::detail
