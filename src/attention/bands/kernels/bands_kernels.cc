// SPDX-License-Identifier: Apache-2.0
#include "attention/bands/kernels/bands_kernels.h"

#include "attention/bands/kernels/bands_kernels_body.h"

namespace kvspan {

#if defined(__x86_64__)
// Not in the file of AMX itself: what runs before main is compiled for every processor.
static BandsAttentionKernels with_tiles() noexcept {
  BandsAttentionKernels all = detail::kBandsAttentionAvx512;
  const BandsAttentionKernels& tiles = detail::kBandsAttentionAmx;
  all.score = tiles.score;
  all.weigh = tiles.weigh;
  all.project = tiles.project;
  all.score_part = tiles.score_part;
  all.score_end = tiles.score_end;
  all.begin = tiles.begin;
  all.end = tiles.end;
  return all;
}
#endif

const BandsAttentionKernels detail::kBandsAttentionRef{.score = score_tiles<score_plain>,
                                                       .fold = fold_plain,
                                                       .means = means_plain,
                                                       .weigh = weigh_plain,
                                                       .project = project_plain,
                                                       .round_weights = round_weights_plain,
                                                       .round = round_plain};

const BandsAttentionKernels& bands_attention_kernels(CpuLevel level) noexcept {
#if defined(__aarch64__)
  if (level == CpuLevel::kNeon || level == CpuLevel::kNeonI8mm) return detail::kBandsAttentionNeon;
#elif defined(__x86_64__)
  if (level == CpuLevel::kAvx2) return detail::kBandsAttentionAvx2;
  if (level == CpuLevel::kAvx512) return detail::kBandsAttentionAvx512;
  if (level == CpuLevel::kAmx) {
    static const BandsAttentionKernels amx = with_tiles();
    return amx;
  }
#endif
  (void)level;
  return detail::kBandsAttentionRef;
}

}  // namespace kvspan
