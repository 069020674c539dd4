// SPDX-License-Identifier: Apache-2.0
#include "cache/rows/half_rows.h"

#include "base/kernels_by_level.h"

namespace kvspan {

void add_half_rows(const HalfRows& rows, const float* factors, std::size_t count, std::size_t n,
                   float* vectors) noexcept {
  static constexpr KernelsOfLevel<decltype(&detail::add_half_rows_ref)> kTable[] = {
      {CpuLevel::kReference, detail::add_half_rows_ref},
#if defined(__aarch64__)
      {CpuLevel::kNeon, detail::add_half_rows_neon},
#elif defined(__x86_64__)
      {CpuLevel::kAvx2, detail::add_half_rows_avx2},
      {CpuLevel::kAvx512, detail::add_half_rows_avx512},
#endif
  };
  kernels_for(cpu_level(), kTable)(rows, factors, count, n, vectors);
}

namespace detail {

void add_half_rows_ref(const HalfRows& rows, const float* factors, std::size_t count, std::size_t n,
                       float* vectors) noexcept {
  for (std::size_t v = 0; v < count; ++v) {
    for (std::size_t r = 0; r < rows.count; ++r) {
      const Half* row = rows.numbers + r * rows.stride;
      const float factor = factors[v * kHalfRows + r];
      for (std::size_t i = 0; i < n; ++i) vectors[v * n + i] += factor * to_float(row[i]);
    }
  }
}

}  // namespace detail
}  // namespace kvspan
