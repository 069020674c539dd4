// SPDX-License-Identifier: Apache-2.0
// The arithmetic of llama.cpp's q8_0 and q4_0 blocks (groups of up to 32 numbers, f16 scale), so
// that its caches can be compared against like with like. In f32, each operation rounded:
//
//     q8_0   d = max|x| / 127    v = round(x * (1 / d)), halves away from zero
//     q4_0   d = m / -8, m the first of the numbers of largest magnitude
//                                v = min(15, trunc(x * (1 / d) + 8.5)) - 8
//
// d is rounded to f16 only after the division (unlike the other codecs here), and x^ = f16(d) v.
// Where 1 / d overflows (numbers below 1e-36), llama.cpp's codes are not defined; here they are 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/half.h"

namespace kvspan {

// Codes of n <= 32 finite numbers; returns d in f16.
Half quantize_q8_0(const float* x, std::size_t n, std::int8_t* codes) noexcept;
Half quantize_q4_0(const float* x, std::size_t n, std::int8_t* codes) noexcept;

}  // namespace kvspan
