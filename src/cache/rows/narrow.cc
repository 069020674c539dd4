// SPDX-License-Identifier: Apache-2.0
#include "cache/rows/narrow.h"

#include "base/cpu_level.h"

namespace kvspan {

void narrow_to_half(const float* from, std::size_t count, Half* to) noexcept {
  switch (cpu_level()) {
#if defined(__aarch64__)
    case CpuLevel::kNeon:
    case CpuLevel::kNeonI8mm:
      return detail::narrow_to_half_neon(from, count, to);
#elif defined(__x86_64__)
    case CpuLevel::kAvx2:
    case CpuLevel::kAvx512:
    case CpuLevel::kAmx:
      return detail::narrow_to_half_avx2(from, count, to);
#endif
    default:
      return detail::narrow_to_half_ref(from, count, to);
  }
}

namespace detail {

void narrow_to_half_ref(const float* from, std::size_t count, Half* to) noexcept {
  for (std::size_t i = 0; i < count; ++i) to[i] = to_half(from[i]);
}

}  // namespace detail
}  // namespace kvspan
