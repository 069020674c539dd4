// SPDX-License-Identifier: Apache-2.0
// f32 to f16, round to nearest even, many numbers at once: what a full-rank row costs to store.
#pragma once

#include <cstddef>

#include "base/half.h"

namespace kvspan {

// to[i] = to_half(from[i]) at the level in use; equal bit for bit at all levels (NaN stays a NaN).
void narrow_to_half(const float* from, std::size_t count, Half* to) noexcept;

namespace detail {
void narrow_to_half_ref(const float* from, std::size_t count, Half* to) noexcept;
void narrow_to_half_neon(const float* from, std::size_t count, Half* to) noexcept;
void narrow_to_half_avx2(const float* from, std::size_t count, Half* to) noexcept;
}  // namespace detail

}  // namespace kvspan
