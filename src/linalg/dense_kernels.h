// SPDX-License-Identifier: Apache-2.0
// The inner loops of the linear algebra, in f64, one table per instruction set.
//
// Layout shared by all: row-major, every row starts on a 64-byte boundary (`stride` is a multiple
// of 8 and counts doubles), rows are padded to that boundary with zeros, and vectors are padded
// likewise. Padding may be read and written back unchanged. Nothing overlaps unless said.
#pragma once

#include <cstddef>

#include "base/cpu_level.h"
#include "linalg/ql_sweep.h"

namespace kvspan::detail {

inline constexpr std::size_t kPanelAlign = 8;  // doubles: one cache line
constexpr std::size_t padded(std::size_t n) {
  return (n + kPanelAlign - 1) / kPanelAlign * kPanelAlign;
}

struct DenseKernels {
  // C += A'B: C [m, n], A [k, m], B [k, n]; m a multiple of 4, n of 8. Each entry of C adds its k
  // products in order of the rows, so that splitting k over several calls changes no bit.
  void (*add_outer)(double* C, std::size_t c_stride, const double* A, std::size_t a_stride,
                    const double* B, std::size_t b_stride, std::size_t m, std::size_t n,
                    std::size_t k) noexcept;

  // A symmetric, stored in its 8 x 8 blocks on and below the diagonal. For rows and columns
  // first..n-1:
  //     A -= v w' + w v',   then   p = A u.
  // v, w and u must be 0 before `first` and from n on; A has padded(n) rows. Entries of p before
  // `first` and from n on are undefined afterwards, but finite.
  void (*update_and_multiply)(double* A, std::size_t stride, std::size_t first, std::size_t n,
                              const double* v, const double* w, const double* u,
                              double* p) noexcept;

  // Rotates neighbouring rows by the angles with sine sines_i and tangent of the half angle
  // halves_i (at most 1 in magnitude), from the last pair down to the first: for i = high-1 .. low
  //     (Z_i, Z_i+1) = (c Z_i - s Z_i+1, s Z_i + c Z_i+1),
  // with Z_i+1 as the previous rotation left it. cols is a multiple of 8. Brings `aside`, an
  // unrelated sweep, to its end meanwhile.
  void (*rotate_rows)(double* Z, std::size_t stride, std::size_t cols, std::size_t low,
                      std::size_t high, const double* sines, const double* halves,
                      QlSweep& aside) noexcept;

  // Z_i -= tau (Z_i . v) v for rows 0..rows-1 and columns first..cols-1. v must be 0 before `first`
  // and in its padding. Up to padded(rows) rows may be reflected.
  void (*reflect_rows)(double* Z, std::size_t stride, std::size_t first, std::size_t cols,
                       std::size_t rows, const double* v, double tau) noexcept;

  // The same with v and then with w, given the product v . w. Both must be 0 before `first`.
  void (*reflect_rows_twice)(double* Z, std::size_t stride, std::size_t first, std::size_t cols,
                             std::size_t rows, const double* v, double v_tau, const double* w,
                             double w_tau, double vw) noexcept;
};

// Plain loops: define what is right.
extern const DenseKernels kDenseReference;
#if defined(__aarch64__)
extern const DenseKernels kDenseNeon;
#elif defined(__x86_64__)
extern const DenseKernels kDenseAvx2;
extern const DenseKernels kDenseAvx512;
#endif

// The table of a level this processor has.
const DenseKernels& dense_kernels(CpuLevel level) noexcept;
inline const DenseKernels& dense_kernels() noexcept {
  return dense_kernels(cpu_level());
}

}  // namespace kvspan::detail
