// SPDX-License-Identifier: Apache-2.0
// Attention kernels for AVX2, FMA and F16C: 16 registers of 8 floats.
#include <immintrin.h>

#include <type_traits>

#include "attention/kernels/x86/codes_x86.h"
#include "attention/kernels/x86/panels_x86.h"
#include "attention/kernels/x86/vector_avx2.h"

namespace kvspan::detail {

const AttentionKernels kAttentionKernelsAvx2{
    score_rows_simd<Avx2>, weigh_rows_simd<Avx2>, score_codes_simd<Avx2>, weigh_codes_simd<Avx2>,
    soften_row_simd<Avx2>, widen_simd<Avx2>,      score_panels_simd<Avx2>,  soften_panels_simd<Avx2>,
    weigh_panels_simd<Avx2>, cap_simd<Avx2>,        exp2_row_simd<Avx2>};

}  // namespace kvspan::detail
