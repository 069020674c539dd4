// SPDX-License-Identifier: Apache-2.0
// Bands by AVX2: products in pairs of 32 bytes; a tile's quad is two registers.
#include <immintrin.h>

#include <cstddef>
#include <cstring>

#include "attention/bands/kernels/bands_kernels.h"
#include "attention/bands/kernels/bands_kernels_body.h"
#include "attention/bands/kernels/bands_means_x86.h"
#include "attention/bands/kernels/bands_pairs_x86.h"
#include "attention/kernels/x86/vector_avx2.h"
#include "base/unrolled.h"

namespace kvspan {
namespace {

constexpr int kMeanRows = 3;  // x 4 sums

struct Bytes {
  using I = __m256i;
  using V = detail::Avx2;
  static constexpr int kParts = 2, kTogether = 5;

  static I load(const void* from) { return _mm256_loadu_si256(static_cast<const I*>(from)); }
  static void store(void* to, I x) { _mm256_store_si256(static_cast<I*>(to), x); }
  static I set(std::int32_t x) { return _mm256_set1_epi32(x); }
  static I pairs(I no_sign, I sign) { return _mm256_maddubs_epi16(no_sign, sign); }
  static I widened(I pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
  static I magnitude(I x) { return _mm256_abs_epi8(x); }
  static I with_sign(I x, I of) { return _mm256_sign_epi8(x, of); }
  static I shuffled(I x, __m128i order) { return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(order)); }
  template <int kPart>
  static I of_weights(__m128i all) {
    const I places = _mm256_add_epi32(_mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), set(2 * kPart));
    return _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(all), places);
  }
  static __m128i sum_of_lanes(I x) { return _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)); }
};

// Positions lie in eights.
void means(const AnchoredMeans& means, const float* sums, std::int32_t rows, float* to, std::int32_t stride) noexcept {
  detail::in_even_blocks<kMeanRows>(rows, [&]<int R>(std::ptrdiff_t r) {
    std::ptrdiff_t k = 0;
    mean_run<detail::Avx2, R, 2>(means, sums + r * means.sums(), k, to + r * stride, stride);
    mean_run<detail::Avx2, R, 1>(means, sums + r * means.sums(), k, to + r * stride, stride);
  });
}

// x times factor to the nearest whole number. count: a multiple of 4.
inline void to_nearest(const float* x, std::int32_t count, float factor, std::int8_t* to) noexcept {
  const __m256 by = _mm256_set1_ps(factor);
  const auto whole = [&](const float* from) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from), by)); };
  std::int32_t i = 0;
  for (; i + 32 <= count; i += 32) {
    // Halves of what is packed come from the two sides in turn, lane by lane.
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(whole(x + i), whole(x + i + 8)),
                                             _mm256_packs_epi32(whole(x + i + 16), whole(x + i + 24)));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_permutevar8x32_epi32(bytes, order));
  }
  for (; i < count; i += 4) {
    const __m128i four = _mm_cvtps_epi32(_mm_mul_ps(_mm_loadu_ps(x + i), _mm256_castps256_ps128(by)));
    const __m128i bytes = _mm_packs_epi16(_mm_packs_epi32(four, four), four);
    const std::int32_t all = _mm_cvtsi128_si32(bytes);
    std::memcpy(to + i, &all, 4);
  }
}

float round(const float* x, std::int32_t count, std::int8_t* to, float* sum) noexcept {
  const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 most[2] = {}, total[2] = {};  // one alone would wait for itself
  const auto take = [&](int k, __m256 some) {
    total[k] = _mm256_add_ps(total[k], some);
    most[k] = _mm256_max_ps(_mm256_and_ps(some, no_sign), most[k]);
  };
  std::int32_t i = 0;
  for (; i + 16 <= count; i += 16) {
    take(0, _mm256_loadu_ps(x + i));
    take(1, _mm256_loadu_ps(x + i + 8));
  }
  for (; i < count; i += 4) take(0, _mm256_zextps128_ps256(_mm_loadu_ps(x + i)));
  *sum += detail::Avx2::hadd(_mm256_add_ps(total[0], total[1]));
  const float largest = detail::Avx2::hmax(_mm256_max_ps(most[0], most[1]));
  to_nearest(x, count, detail::to_bytes(largest), to);
  return largest;
}

float round_weights(float* x, const float* factors, std::int32_t count, std::int8_t* to, float* sum) noexcept {
  __m256 most[2] = {}, total[2] = {};
  for (std::int32_t i = 0; i < count; i += 16) {
    unrolled<2>([&]<int k>() __attribute__((always_inline)) {
      float* const at = x + i + 8 * k;
      const __m256 product = _mm256_mul_ps(_mm256_loadu_ps(at), _mm256_loadu_ps(factors + i + 8 * k));
      _mm256_storeu_ps(at, product);
      total[k] = _mm256_add_ps(total[k], product);
      most[k] = _mm256_max_ps(product, most[k]);
    });
  }
  *sum += detail::Avx2::hadd(_mm256_add_ps(total[0], total[1]));
  const float largest = detail::Avx2::hmax(_mm256_max_ps(most[0], most[1]));
  to_nearest(x, count, detail::to_bytes(largest), to);
  return largest;
}

}  // namespace

const BandsAttentionKernels detail::kBandsAttentionAvx2{.score = score_by_pairs<Bytes>,
                                                        .fold = detail::fold_plain,
                                                        .means = means,
                                                        .weigh = weigh_by_pairs<Bytes>,
                                                        .project = project_by_pairs<Bytes>,
                                                        .round_weights = round_weights,
                                                        .round = round};

}  // namespace kvspan
