// SPDX-License-Identifier: Apache-2.0
// The plain loops compiled for AVX2.
#include "attention/bands_kernels.h"
#include "attention/bands_kernels_body.h"

namespace kvspan {

const BandsAttentionKernels detail::kBandsAttentionAvx2{score_plain,   weigh_plain, scale_plain,
                                                        largest_plain, round_plain, project_plain};

}  // namespace kvspan
