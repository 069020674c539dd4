// SPDX-License-Identifier: Apache-2.0
#include "attention/kernels/kernels.h"

#include "base/kernels_by_level.h"

namespace kvspan {

const AttentionKernels& attention_kernels(CpuLevel level) noexcept {
  static constexpr KernelsOfLevel<const AttentionKernels*> kTable[] = {
      {CpuLevel::kReference, &detail::kAttentionKernelsRef},
#if defined(__aarch64__)
      {CpuLevel::kNeon, &detail::kAttentionKernelsNeon},
#elif defined(__x86_64__)
      {CpuLevel::kAvx2, &detail::kAttentionKernelsAvx2},
      {CpuLevel::kAvx512, &detail::kAttentionKernelsAvx512},
#endif
  };
  return *kernels_for(level, kTable);
}

}  // namespace kvspan
