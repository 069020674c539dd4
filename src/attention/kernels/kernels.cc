// SPDX-License-Identifier: Apache-2.0
#include "attention/kernels/kernels.h"

#include "base/kernels_by_level.h"

namespace kvspan {

[[maybe_unused]] static AttentionKernels with_score_codes(AttentionKernels kernels,
                                                          decltype(AttentionKernels::score_codes) own) noexcept {
  kernels.score_codes = own;
  return kernels;
}

const AttentionKernels& attention_kernels(CpuLevel level) noexcept {
  static const KernelsOfLevel<AttentionKernels> kTable[] = {
      {CpuLevel::kReference, detail::kAttentionKernelsRef},
#if defined(__aarch64__)
      {CpuLevel::kNeon, detail::kAttentionKernelsNeon},
#elif defined(__x86_64__)
      {CpuLevel::kAvx2, detail::kAttentionKernelsAvx2},
      {CpuLevel::kAvx512, detail::kAttentionKernelsAvx512},
      {CpuLevel::kAvx512Vnni, with_score_codes(detail::kAttentionKernelsAvx512, detail::kScoreCodesVnni)},
#endif
  };
  return kernels_for(level, kTable);
}

}  // namespace kvspan
