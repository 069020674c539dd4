// SPDX-License-Identifier: Apache-2.0
// Hadamard for NEON: distances 1 to 8 within four registers, then two distances per pass.
#include <arm_neon.h>

#include "codec/hadamard.h"

namespace kvspan::detail {
namespace {

inline void butterfly(float32x4_t& a, float32x4_t& b) {
  const float32x4_t difference = vsubq_f32(a, b);
  a = vaddq_f32(a, b);
  b = difference;
}

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
  std::size_t h = 16;
  for (; 4 * h <= size; h *= 4) {
    for (std::size_t block = 0; block < size; block += 4 * h) {
      for (float* p = x + block; p < x + block + h; p += 4) {
        float32x4_t a = vld1q_f32(p), b = vld1q_f32(p + h);
        float32x4_t c = vld1q_f32(p + 2 * h), d = vld1q_f32(p + 3 * h);
        butterfly(a, b);
        butterfly(c, d);
        butterfly(a, c);
        butterfly(b, d);
        vst1q_f32(p, a);
        vst1q_f32(p + h, b);
        vst1q_f32(p + 2 * h, c);
        vst1q_f32(p + 3 * h, d);
      }
    }
  }
  if (h < size) {
    for (float* p = x; p < x + h; p += 4) {
      float32x4_t a = vld1q_f32(p), b = vld1q_f32(p + h);
      butterfly(a, b);
      vst1q_f32(p, a);
      vst1q_f32(p + h, b);
    }
  }
}

}  // namespace kvspan::detail
