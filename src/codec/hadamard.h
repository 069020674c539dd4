// SPDX-License-Identifier: Apache-2.0
// Rotation by the orthonormal Hadamard matrix (Sylvester's order), in place: y = H x, H = H' =
// H^-1, so applying it again undoes it. It spreads the energy of single large components over all
// of them, which makes rows kinder to quantization. For d = 2^k m with m odd, the rotation is
// block-diagonal: m blocks of size 2^k. Cost: d log2(2^k) additions. Every level gives the same
// bits: x is multiplied by 2^(-k/2) first, then the butterflies run from distance 1 to 2^(k-1).
#pragma once

#include <cstddef>

#include "base/cpu_level.h"
#include "kvspan/tensor_view.h"

namespace kvspan {

// Size of the blocks for d components: the largest power of two dividing d; 0 for d = 0.
constexpr std::size_t hadamard_block(std::size_t d) noexcept {
  return d & (~d + 1);
}

// Rotates each row of rows [n, d] in place, with the kernels of cpu_level().
void hadamard_rotate(TensorView<float, 2> rows) noexcept;
inline void hadamard_rotate(float* x, std::size_t d) noexcept {
  hadamard_rotate(TensorView<float, 2>(x, {1, d}));
}

namespace detail {
// One block: x [size], size a power of two; factor = size^(-1/2).
using HadamardKernel = void (*)(float* x, std::size_t size, float factor) noexcept;
HadamardKernel hadamard_kernel(CpuLevel level) noexcept;
void hadamard_ref(float* x, std::size_t size, float factor) noexcept;
void hadamard_neon(float* x, std::size_t size, float factor) noexcept;
void hadamard_avx2(float* x, std::size_t size, float factor) noexcept;
}  // namespace detail

}  // namespace kvspan
