// SPDX-License-Identifier: Apache-2.0
#include "cache/rows/half_rows.h"

#include "base/cpu_level.h"

namespace kvspan {

void add_half_rows(const HalfRows& rows, const float* factors, std::size_t count, std::size_t n,
                   float* vectors) noexcept {
  switch (cpu_level()) {
#if defined(__aarch64__)
    case CpuLevel::kNeon:
    case CpuLevel::kNeonI8mm:
      return detail::add_half_rows_neon(rows, factors, count, n, vectors);
#elif defined(__x86_64__)
    case CpuLevel::kAvx2:
      return detail::add_half_rows_avx2(rows, factors, count, n, vectors);
    case CpuLevel::kAvx512:
    case CpuLevel::kAmx:
      return detail::add_half_rows_avx512(rows, factors, count, n, vectors);
#endif
    default:
      return detail::add_half_rows_ref(rows, factors, count, n, vectors);
  }
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
