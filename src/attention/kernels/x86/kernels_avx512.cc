// SPDX-License-Identifier: Apache-2.0
// Attention kernels for AVX-512: 32 registers of 16 floats; the last 8 coordinates of a dimension
// that is an odd multiple of 8 are half a vector, by mask.
#include "attention/kernels/x86/codes_x86.h"
#include "attention/kernels/x86/panels_x86.h"
#include "attention/kernels/x86/vector_avx512.h"

namespace kvspan::detail {

const AttentionKernels kAttentionKernelsAvx512{
    score_rows_simd<Avx512>,  weigh_rows_simd<Avx512>,  score_codes_simd<Avx512>,
    weigh_codes_simd<Avx512>, soften_row_simd<Avx512>,  widen_simd<Avx512>,
    score_panels_simd<Avx512>,  soften_panels_simd<Avx512>, weigh_panels_simd<Avx512>,
    cap_simd<Avx512>,         exp2_row_simd<Avx512>};

}  // namespace kvspan::detail
