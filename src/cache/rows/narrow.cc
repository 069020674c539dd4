// SPDX-License-Identifier: Apache-2.0
#include "cache/rows/narrow.h"

#include "base/kernels_by_level.h"

namespace kvspan {

void narrow_to_half(const float* from, std::size_t count, Half* to) noexcept {
  static constexpr KernelsOfLevel<decltype(&detail::narrow_to_half_ref)> kTable[] = {
      {CpuLevel::kReference, detail::narrow_to_half_ref},
#if defined(__aarch64__)
      {CpuLevel::kNeon, detail::narrow_to_half_neon},
#elif defined(__x86_64__)
      {CpuLevel::kAvx2, detail::narrow_to_half_avx2},
#endif
  };
  kernels_for(cpu_level(), kTable)(from, count, to);
}

namespace detail {

void narrow_to_half_ref(const float* from, std::size_t count, Half* to) noexcept {
  for (std::size_t i = 0; i < count; ++i) to[i] = to_half(from[i]);
}

}  // namespace detail
}  // namespace kvspan
