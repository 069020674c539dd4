// SPDX-License-Identifier: Apache-2.0
// Steps of band components, fitted to samples.
#pragma once

#include <vector>

#include "codec/bands/bands_pack.h"
#include "linalg/matrix.h"

namespace kvspan {

// samples [n, stored]: components divided by their tokens' gains, in stored order. The step of
// least squared error of each: for a uniform quantizer by a fine search; for a trellis of some
// sizes about the one for a Gaussian of the same spread, on up to 1,024 samples; the least of the
// others for a component that is nothing but zeros. Cost: some 40 passes over the samples, or
// coding the samples seven times.
std::vector<float> fit_band_steps(const Matrix& samples, const BandsLayout& layout);

}  // namespace kvspan
