// SPDX-License-Identifier: Apache-2.0
#include "codec/hadamard.h"

#include <cmath>

#include "base/kernels_by_level.h"

namespace kvspan {

detail::HadamardKernel detail::hadamard_kernel(CpuLevel level) noexcept {
  static constexpr KernelsOfLevel<HadamardKernel> kTable[] = {
      {CpuLevel::kReference, hadamard_ref},
#if defined(__aarch64__)
      {CpuLevel::kNeon, hadamard_neon},
#elif defined(__x86_64__)
      {CpuLevel::kAvx2, hadamard_avx2},
#endif
  };
  return kernels_for(level, kTable);
}

void hadamard_rotate(TensorView<float, 2> rows) noexcept {
  const std::size_t d = rows.shape[1], size = hadamard_block(d);
  if (size <= 1) return;
  const auto kernel = detail::hadamard_kernel(cpu_level());
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
  for (std::size_t r = 0; r < rows.shape[0]; ++r) {
    for (std::size_t at = 0; at < d; at += size) kernel(rows.row(r) + at, size, factor);
  }
}

}  // namespace kvspan
