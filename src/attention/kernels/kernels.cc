// SPDX-License-Identifier: Apache-2.0
#include "attention/kernels/kernels.h"

namespace kvspan {

const AttentionKernels& attention_kernels(CpuLevel level) noexcept {
  switch (level) {
#if defined(__aarch64__)
    case CpuLevel::kNeon:
    case CpuLevel::kNeonI8mm:
      return detail::kAttentionKernelsNeon;
#elif defined(__x86_64__)
    case CpuLevel::kAvx2:
      return detail::kAttentionKernelsAvx2;
    case CpuLevel::kAvx512:
    case CpuLevel::kAmx:
      return detail::kAttentionKernelsAvx512;
#endif
    default:
      return detail::kAttentionKernelsRef;
  }
}

}  // namespace kvspan
