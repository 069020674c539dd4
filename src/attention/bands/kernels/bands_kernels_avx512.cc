// SPDX-License-Identifier: Apache-2.0
// Bands by AVX-512 without VNNI: products in pairs of 64 bytes; a tile's quad is one register, so that lanes are tokens.
#include <immintrin.h>

#include <algorithm>
#include <cstddef>

#include "attention/bands/kernels/bands_kernels.h"
#include "attention/bands/kernels/bands_kernels_body.h"
#include "attention/bands/kernels/bands_means_x86.h"
#include "attention/bands/kernels/bands_pairs_x86.h"
#include "attention/bands/kernels/bands_parts_avx512.h"
#include "attention/kernels/softmax_simd.h"
#include "attention/kernels/x86/vector_avx2.h"
#include "attention/kernels/x86/vector_avx512.h"
#include "base/unrolled.h"

namespace kvspan {
namespace {

constexpr int kMeanRows = 5;  // x 4 sums

struct Bytes {
  using I = __m512i;
  using V = detail::Avx512;
  static constexpr int kParts = 1, kTogether = 9;

  static I load(const void* from) { return _mm512_loadu_si512(from); }
  static void store(void* to, I x) { _mm512_store_si512(to, x); }
  static I set(std::int32_t x) { return _mm512_set1_epi32(x); }
  static I pairs(I no_sign, I sign) { return _mm512_maddubs_epi16(no_sign, sign); }
  static I widened(I pairs) { return _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)); }
  static I magnitude(I x) { return _mm512_abs_epi8(x); }
  static I with_sign(I x, I of) {
    return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(of), _mm512_setzero_si512(), x);
  }
  static I shuffled(I x, __m128i order) { return _mm512_shuffle_epi8(x, _mm512_broadcast_i32x4(order)); }
  template <int>
  static I of_weights(__m128i all) {
    const I places = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_epi32(places, _mm512_castsi128_si512(all));
  }
  static __m128i sum_of_lanes(I x) {
    const __m256i two = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
  }
};

// Sixteen pairs at a time, or those that are left; then slow ones two at a time, a lane for each of
// the four polynomials of the two cosines and sines.
void fold(const AnchoredMeans& means, std::int32_t head, const float* u, float* to) noexcept {
  const std::int32_t rotated = means.rotated(), pairs = means.pairs(), alone = means.alone();
  const float* const mean = means.mean(head);
  const __m512i firsts =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i seconds = _mm512_add_epi32(firsts, _mm512_set1_epi32(1));
  for (std::int32_t j = 0; j < rotated; j += 16) {
    const __mmask16 there = first_of_16(rotated - j);
    const auto load = [&](const float* from, __m512& x, __m512& y) {
      if (!means.neighbours()) {
        x = _mm512_maskz_loadu_ps(there, from + j);
        y = _mm512_maskz_loadu_ps(there, from + rotated + j);
        return;
      }
      const std::int32_t left = 2 * (rotated - j);
      const __m512 low = _mm512_maskz_loadu_ps(first_of_16(left), from + 2 * j);
      const __m512 high = left > 16
                              ? _mm512_maskz_loadu_ps(first_of_16(left - 16), from + 2 * j + 16)
                              : _mm512_setzero_ps();
      x = _mm512_permutex2var_ps(low, firsts, high);
      y = _mm512_permutex2var_ps(low, seconds, high);
    };
    __m512 x, y, p, q;
    load(u, x, y);
    load(mean, p, q);
    _mm512_mask_storeu_ps(to + j, there, _mm512_fmadd_ps(x, p, _mm512_mul_ps(y, q)));
    _mm512_mask_storeu_ps(to + pairs + j, there, _mm512_fmsub_ps(y, p, _mm512_mul_ps(x, q)));
  }
  if (alone < rotated) {
    // Of each two pairs: A four times, B four times, and again of the second.
    const __m512i spread = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 3, 3, 3, 3);
    const float* by = means.slow();
    __m512 sums = _mm512_setzero_ps();
    for (std::int32_t j = alone; j < rotated; j += 2, by += 16) {
      const __m128 two =
          _mm_loadh_pi(_mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(to + j))),
                       reinterpret_cast<const __m64*>(to + pairs + j));
      const __m512 each = _mm512_permutexvar_ps(spread, _mm512_castps128_ps512(two));
      sums = _mm512_fmadd_ps(each, _mm512_loadu_ps(by), sums);
    }
    const __m256 both =
        _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
    _mm_storeu_ps(to + alone, _mm256_castps256_ps128(both));
    _mm_storeu_ps(to + pairs + alone, _mm256_extractf128_ps(both, 1));
  }
  const std::int32_t used = means.used_terms();
  std::fill(to + used, to + means.terms(), 0.0f);
  std::fill(to + pairs + used, to + pairs + means.terms(), 0.0f);
  float constant = 0.0f;
  for (std::int32_t i = 2 * rotated; i < means.dim(); ++i) constant += u[i] * mean[i];
  _mm_storeu_ps(to + 2 * static_cast<std::ptrdiff_t>(pairs), _mm_set1_ps(constant));
}

// Positions lie in eights.
void means(const AnchoredMeans& means, const float* sums, std::int32_t rows, float* to,
           std::int32_t stride) noexcept {
  detail::in_even_blocks<kMeanRows>(rows, [&]<int R>(std::ptrdiff_t r) {
    std::ptrdiff_t k = 0;
    mean_run<detail::Avx512, R, 2>(means, sums + r * means.sums(), k, to + r * stride, stride);
    mean_run<detail::Avx512, R, 1>(means, sums + r * means.sums(), k, to + r * stride, stride);
    mean_run<detail::Avx2, R, 1>(means, sums + r * means.sums(), k, to + r * stride, stride);
  });
}

inline __m128i rounded(__m512 x, __m512 factor) noexcept {
  return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, factor)));
}

float round_weights(float* x, const float* factors, std::int32_t count, std::int8_t* to,
                    float* sum) noexcept {
  __m512 most = _mm512_setzero_ps(), total = _mm512_setzero_ps();
  for (std::int32_t i = 0; i < count; i += 16) {
    const __m512 product = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(factors + i));
    _mm512_storeu_ps(x + i, product);
    total = _mm512_add_ps(total, product);
    most = _mm512_max_ps(product, most);
  }
  *sum += _mm512_reduce_add_ps(total);
  const float largest = _mm512_reduce_max_ps(most);
  const __m512 factor = _mm512_set1_ps(detail::to_bytes(largest));
  for (std::int32_t i = 0; i < count; i += 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), rounded(_mm512_loadu_ps(x + i), factor));
  }
  return largest;
}

// A stretch's scores stay in registers from the first look to the rounding.
BandsRow soften(const float* scores, const float* gains, std::int32_t count, float light,
                float* max, std::int8_t* to) noexcept {
  constexpr int kVectors = kBandsStretchTiles;
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const std::int32_t n = count / 16;
  __m512 w[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    w[i] = i < n ? _mm512_loadu_ps(scores + 16 * i) : _mm512_set1_ps(kNothing);
  }
  // Over all of x, four at a time.
  const auto over = [](const __m512(&x)[kVectors], auto two) __attribute__((always_inline)) {
    __m512 four[4] = {x[0], x[1], x[2], x[3]};
    for (int i = 4; i < kVectors; ++i) four[i % 4] = two(four[i % 4], x[i]);
    return two(two(four[0], four[1]), two(four[2], four[3]));
  };
  const auto larger = [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); };
  const auto plus = [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); };
  const float before = *max;
  *max = std::max(before, _mm512_reduce_max_ps(over(w, larger)));
  const __m512 base = _mm512_set1_ps(*max == kNothing ? 0.0f : *max);
  for (int i = 0; i < kVectors; ++i) {
    w[i] = detail::weight_simd<detail::Avx512>(_mm512_sub_ps(w[i], base));
  }
  BandsRow row;
  row.sum = _mm512_reduce_add_ps(over(w, plus));
  row.light = *max == before && row.sum < light;
  if (row.light) return row;
  for (int i = 0; i < kVectors; ++i) {
    if (i < n) w[i] = _mm512_mul_ps(w[i], _mm512_loadu_ps(gains + 16 * i));
  }
  row.weighed = _mm512_reduce_add_ps(over(w, plus));
  row.largest = _mm512_reduce_max_ps(over(w, larger));
  const __m512 factor = _mm512_set1_ps(detail::to_bytes(row.largest));
  for (int i = 0; i < kVectors; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * i), rounded(w[i], factor));
  }
  return row;
}

float round(const float* x, std::int32_t count, std::int8_t* to, float* sum) noexcept {
  // Three of each: one alone would wait for itself.
  __m512 most[3] = {}, total[3] = {};
  const auto take = [&](int k, __m512 some) {
    total[k] = _mm512_add_ps(total[k], some);
    most[k] = _mm512_max_ps(_mm512_abs_ps(some), most[k]);
  };
  std::int32_t first = 0;
  for (; first + 48 <= count; first += 48) {
    unrolled<3>([&]<int k>() __attribute__((always_inline)) {
      take(k, _mm512_loadu_ps(x + first + 16 * k));
    });
  }
  for (; first < count; first += 16) {
    take(0, _mm512_maskz_loadu_ps(first_of_16(count - first), x + first));
  }
  *sum += _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(total[0], total[1]), total[2]));
  const float largest =
      _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(most[0], most[1]), most[2]));
  const __m512 factor = _mm512_set1_ps(detail::to_bytes(largest));
  std::int32_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const auto some = [&](int k) {
      return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i + 16 * k), factor));
    };
    // Halves of what is packed come from the two sides in turn, lane by lane.
    const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(some(0), some(1)),
                                             _mm512_packs_epi32(some(2), some(3)));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(to + i, _mm512_permutexvar_epi32(order, bytes));
  }
  for (; i < count; i += 16) {
    const __mmask16 there = first_of_16(count - i);
    _mm_mask_storeu_epi8(to + i, there, rounded(_mm512_maskz_loadu_ps(there, x + i), factor));
  }
  return largest;
}

}  // namespace

const BandsAttentionKernels detail::kBandsAttentionAvx512{.run_tiles = kBandsStretchTiles,
                                                          .score = score_by_pairs<Bytes>,
                                                          .fold = fold,
                                                          .means = means,
                                                          .weigh = weigh_by_pairs<Bytes>,
                                                          .project = project_by_pairs<Bytes>,
                                                          .round_weights = round_weights,
                                                          .round = round,
                                                          .soften = soften};

}  // namespace kvspan
