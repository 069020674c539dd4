// SPDX-License-Identifier: Apache-2.0
#include "attention/bands_kernels.h"

#include "attention/bands_kernels_body.h"

namespace kvspan {

const BandsAttentionKernels detail::kBandsAttentionRef{
    score_tiles<score_plain>, fold_plain, means_plain, weigh_plain, project_plain,
    round_weights_plain,      round_plain};

const BandsAttentionKernels& bands_attention_kernels(CpuLevel level) noexcept {
#if defined(__aarch64__)
  if (level == CpuLevel::kNeon || level == CpuLevel::kNeonI8mm) return detail::kBandsAttentionNeon;
#elif defined(__x86_64__)
  if (level == CpuLevel::kAvx2) return detail::kBandsAttentionAvx2;
  if (level == CpuLevel::kAvx512) return detail::kBandsAttentionAvx512;
  if (level == CpuLevel::kAmx) return detail::kBandsAttentionAmx;
#endif
  (void)level;
  return detail::kBandsAttentionRef;
}

}  // namespace kvspan
