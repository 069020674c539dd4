// SPDX-License-Identifier: Apache-2.0
#include "attention/bands/kernels/bands_kernels.h"

#include "attention/bands/kernels/bands_kernels_body.h"
#include "base/kernels_by_level.h"

namespace kvspan {

// `lower` with what `own` has in its place. Not in the files of the levels themselves: what happens before main is
// compiled for every processor.
[[maybe_unused]] static BandsAttentionKernels over(BandsAttentionKernels lower,
                                                   const BandsAttentionKernels& own) noexcept {
  const auto take = [](auto& kernel, auto better) {
    if (better != nullptr) kernel = better;
  };
  lower.adds_bytes |= own.adds_bytes;
  take(lower.score, own.score);
  take(lower.weigh, own.weigh);
  take(lower.project, own.project);
  take(lower.score_part, own.score_part);
  take(lower.score_end, own.score_end);
  take(lower.begin, own.begin);
  take(lower.end, own.end);
  return lower;
}

const BandsAttentionKernels detail::kBandsAttentionRef{.score = score_tiles<score_plain>,
                                                       .fold = fold_plain,
                                                       .means = means_plain,
                                                       .weigh = weigh_plain,
                                                       .project = project_plain,
                                                       .round_weights = round_weights_plain,
                                                       .round = round_plain};

const BandsAttentionKernels& bands_attention_kernels(CpuLevel level) noexcept {
  static const KernelsOfLevel<BandsAttentionKernels> kTable[] = {
      {CpuLevel::kReference, detail::kBandsAttentionRef},
#if defined(__aarch64__)
      {CpuLevel::kNeon, detail::kBandsAttentionNeon},
      {CpuLevel::kNeonI8mm, over(detail::kBandsAttentionNeon, detail::kBandsAttentionI8mm)},
#elif defined(__x86_64__)
      {CpuLevel::kAvx2, detail::kBandsAttentionAvx2},
      {CpuLevel::kAvx512, detail::kBandsAttentionAvx512},
      {CpuLevel::kAvx512Vnni, over(detail::kBandsAttentionAvx512, detail::kBandsAttentionVnni)},
      {CpuLevel::kAmx, over(detail::kBandsAttentionAvx512, detail::kBandsAttentionAmx)},
#endif
  };
  return kernels_for(level, kTable);
}

}  // namespace kvspan
