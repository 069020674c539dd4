// SPDX-License-Identifier: Apache-2.0
// Hadamard for NEON: distances 1 to 8 within four registers, then two distances per pass.
#include <arm_neon.h>

#include "codec/hadamard.h"
#include "codec/hadamard_passes.h"

namespace kvspan::detail {
namespace {

inline float32x4_t lows(float32x4_t a, float32x4_t b) {
  return vcombine_f32(vget_low_f32(a), vget_low_f32(b));
}
inline float32x4_t highs(float32x4_t a, float32x4_t b) {
  return vcombine_f32(vget_high_f32(a), vget_high_f32(b));
}

// Distances 1 and 2 inside each of two vectors.
inline void inner(float32x4_t& u, float32x4_t& v) {
  float32x4_t even = vtrn1q_f32(u, v), odd = vtrn2q_f32(u, v);
  butterfly(even, odd);
  const float32x4_t p = vtrn1q_f32(even, odd), q = vtrn2q_f32(even, odd);
  float32x4_t low = lows(p, q), high = highs(p, q);
  butterfly(low, high);
  u = lows(low, high);
  v = highs(low, high);
}

inline void pass_of_16(float* x, float factor) {
  float32x4_t a = vmulq_n_f32(vld1q_f32(x), factor), b = vmulq_n_f32(vld1q_f32(x + 4), factor);
  float32x4_t c = vmulq_n_f32(vld1q_f32(x + 8), factor), d = vmulq_n_f32(vld1q_f32(x + 12), factor);
  inner(a, b);
  inner(c, d);
  butterfly(a, b);
  butterfly(c, d);
  butterfly(a, c);
  butterfly(b, d);
  vst1q_f32(x, a);
  vst1q_f32(x + 4, b);
  vst1q_f32(x + 8, c);
  vst1q_f32(x + 12, d);
}

}  // namespace

void hadamard_neon(float* x, std::size_t size, float factor) noexcept {
  if (size < 16) {
    hadamard_ref(x, size, factor);
    return;
  }
  for (std::size_t i = 0; i < size; i += 16) pass_of_16(x + i, factor);
  hadamard_passes_from_16<float32x4_t>(x, size);
}

}  // namespace kvspan::detail
