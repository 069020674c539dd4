// SPDX-License-Identifier: Apache-2.0
// The softmax steps of attention/kernels/kernels.h, written once over a vector type V that each instruction
// set's file defines (in an anonymous namespace, so that no two files share an instantiation):
//     V::F, V::kWidth, load, store, set, add, sub, mul, div, max, min, fma(a, b, c) = a * b + c,
//     pow2(t) = the float whose bits are those of t shifted left by 23,
//     keep(s, token, begin, end) = s where begin[i] <= token < end[i], else -inf,
//     fma(a, b, c) with an array c = a * b + c[0]; all of c is the same number,
//     hmax, hadd: over the lanes.
#pragma once

#include <limits>

#include "attention/kernels/kernels.h"

namespace kvspan::detail {

// 2^x for -127 <= x <= 126. 2^n comes from the bits of a sum whose ulp is 1; n = -127 gives +0.0,
// which is how weights vanish without a mask. 2^(x-n), |x-n| <= 1/2, is a polynomial that is
// exactly 1 at 0; minimax for the relative error, 9.2e-8, found by iteratively reweighted least
// squares.
alignas(16) inline constexpr float kExp2Addends[3][4] = {
    {0x1.3cea88p-7f, 0x1.3cea88p-7f, 0x1.3cea88p-7f, 0x1.3cea88p-7f},
    {0x1.ebf9bcp-3f, 0x1.ebf9bcp-3f, 0x1.ebf9bcp-3f, 0x1.ebf9bcp-3f},
    {1.0f, 1.0f, 1.0f, 1.0f}};
template <class V>
[[gnu::always_inline]] inline typename V::F exp2_simd(typename V::F x) {
  const auto magic = V::set(12582912.0f + 127.0f);
  const auto t = V::add(x, magic);
  const auto r = V::sub(x, V::sub(t, magic));
  // In pairs: the chain of dependent steps is three long instead of five.
  const auto r2 = V::mul(r, r);
  auto high = V::fma(V::set(0x1.5bba14p-10f), r, kExp2Addends[0]);
  high = V::fma(high, r2, V::fma(V::set(0x1.c6b752p-5f), r, kExp2Addends[1]));
  const auto p = V::fma(high, r2, V::fma(V::set(0x1.62e42ap-1f), r, kExp2Addends[2]));
  return V::mul(p, V::pow2(t));
}

// 2^x for x <= 0, -inf included.
template <class V>
[[gnu::always_inline]] inline typename V::F weight_simd(typename V::F x) {
  return exp2_simd<V>(V::max(x, V::set(-127.0f)));
}

template <class V>
void exp2_row_simd(const float* from, std::int32_t count, float* to) noexcept {
  std::int32_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth)
    V::store(to + i, weight_simd<V>(V::load(from + i)));
  if (i < count) {
    float lanes[V::kWidth] = {};
    for (std::int32_t j = i; j < count; ++j) lanes[j - i] = from[j];
    V::store(lanes, weight_simd<V>(V::load(lanes)));
    for (std::int32_t j = i; j < count; ++j) to[j] = lanes[j - i];
  }
}

template <class V>
float soften_row_simd(float* scores, std::int32_t tokens, float* max) noexcept {
  constexpr std::int32_t kVectors = kScoreMultiple / V::kWidth;
  constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
  const std::int32_t padded = (tokens + kScoreMultiple - 1) / kScoreMultiple * kScoreMultiple;
  for (std::int32_t t = tokens; t < padded; ++t) scores[t] = kNegativeInfinity;

  typename V::F highest[kVectors], sums[kVectors];
#pragma GCC unroll 8
  for (std::int32_t j = 0; j < kVectors; ++j) {
    highest[j] = V::set(*max);
    sums[j] = V::set(0.0f);
  }
  for (std::int32_t t = 0; t < padded; t += kScoreMultiple) {
#pragma GCC unroll 8
    for (std::int32_t j = 0; j < kVectors; ++j) {
      highest[j] = V::max(highest[j], V::load(scores + t + j * V::kWidth));
    }
  }
#pragma GCC unroll 8
  for (std::int32_t j = 1; j < kVectors; ++j) highest[0] = V::max(highest[0], highest[j]);
  *max = V::hmax(highest[0]);
  const auto base = V::set(*max == kNegativeInfinity ? 0.0f : *max);
  for (std::int32_t t = 0; t < padded; t += kScoreMultiple) {
    float* const at = scores + t;
#pragma GCC unroll 8
    for (std::int32_t j = 0; j < kVectors; ++j) {
      const auto w = weight_simd<V>(V::sub(V::load(at + j * V::kWidth), base));
      V::store(at + j * V::kWidth, w);
      sums[j] = V::add(sums[j], w);
    }
  }
#pragma GCC unroll 8
  for (std::int32_t j = 1; j < kVectors; ++j) sums[0] = V::add(sums[0], sums[j]);
  return V::hadd(sums[0]);
}

// Adding a token range only where one is needed keeps the common path free of compares.
template <class V, bool kRanges>
void soften_panel_simd(float* scores, std::int32_t rows, std::int32_t tokens,
                       const std::int32_t* begin, const std::int32_t* end, float* max, float* sum,
                       float* decay) noexcept {
  constexpr std::int32_t kVectors = kPanelRows / V::kWidth;
  const auto nothing = V::set(-std::numeric_limits<float>::infinity());
  typename V::F highest[kVectors], base[kVectors], sums[kVectors];
  for (std::int32_t j = 0; j < kVectors; ++j) highest[j] = V::load(max + j * V::kWidth);
  for (std::int32_t t = 0; t < tokens; ++t) {
    for (std::int32_t j = 0; j < kVectors; ++j) {
      float* at = scores + static_cast<std::ptrdiff_t>(t) * rows + j * V::kWidth;
      auto s = V::load(at);
      if constexpr (kRanges) {
        s = V::keep(s, t, begin + j * V::kWidth, end + j * V::kWidth);
        V::store(at, s);
      }
      highest[j] = V::max(highest[j], s);
    }
  }
  for (std::int32_t j = 0; j < kVectors; ++j) {
    base[j] = V::zero_where_equal(highest[j], nothing);
    const auto old = weight_simd<V>(V::sub(V::load(max + j * V::kWidth), base[j]));
    V::store(decay + j * V::kWidth, old);
    V::store(max + j * V::kWidth, highest[j]);
    sums[j] = V::mul(V::load(sum + j * V::kWidth), old);
  }
  for (std::int32_t t = 0; t < tokens; ++t) {
    for (std::int32_t j = 0; j < kVectors; ++j) {
      float* at = scores + static_cast<std::ptrdiff_t>(t) * rows + j * V::kWidth;
      const auto w = weight_simd<V>(V::sub(V::load(at), base[j]));
      V::store(at, w);
      sums[j] = V::add(sums[j], w);
    }
  }
  for (std::int32_t j = 0; j < kVectors; ++j) V::store(sum + j * V::kWidth, sums[j]);
}

template <class V>
void soften_panels_simd(float* scores, std::int32_t rows, std::int32_t tokens,
                      const std::int32_t* begin, const std::int32_t* end, float* max, float* sum,
                      float* decay) noexcept {
  for (std::int32_t r = 0; r < rows; r += kPanelRows) {
    if (begin == nullptr) {
      soften_panel_simd<V, false>(scores + r, rows, tokens, nullptr, nullptr, max + r, sum + r,
                                  decay + r);
    } else {
      soften_panel_simd<V, true>(scores + r, rows, tokens, begin + r, end + r, max + r, sum + r,
                                 decay + r);
    }
  }
}

// tanh(y) = 1 - 2 / (2^z + 1) with z = 2 log2(e) y, which is what the scores hold. Beyond |z| = 100
// the result is exactly +-1 already.
template <class V>
void cap_simd(float* scores, std::int32_t count, float c) noexcept {
  const auto scale = V::set(1.4426950408889634f * c);
  const auto one = V::set(1.0f);
  const auto step = [&](typename V::F z) __attribute__((always_inline)) {
    const auto bounded = V::min(V::max(z, V::set(-100.0f)), V::set(100.0f));
    const auto tail = V::div(V::set(2.0f), V::add(exp2_simd<V>(bounded), one));
    return V::mul(scale, V::sub(one, tail));
  };
  std::int32_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) V::store(scores + i, step(V::load(scores + i)));
  if (i < count) {
    float lanes[V::kWidth] = {};
    for (std::int32_t j = i; j < count; ++j) lanes[j - i] = scores[j];
    V::store(lanes, step(V::load(lanes)));
    for (std::int32_t j = i; j < count; ++j) scores[j] = lanes[j - i];
  }
}

}  // namespace kvspan::detail
