// SPDX-License-Identifier: Apache-2.0
// What AVX-512 with VNNI has in place of its own: products of 16 bits that are added to their sum at once.
#include "attention/kernels/x86/codes_x86.h"
#include "attention/kernels/x86/vector_avx512.h"

namespace kvspan::detail {
namespace {

struct Vnni : Avx512 {
  static __m256i dot16(__m256i sum, __m256i a, __m256i b) { return _mm256_dpwssd_epi32(sum, a, b); }
};

}  // namespace

const decltype(AttentionKernels::score_codes) kScoreCodesVnni = score_codes_simd<Vnni>;

}  // namespace kvspan::detail
