// SPDX-License-Identifier: Apache-2.0
// Steps of band components, fitted to samples.
#pragma once

#include <vector>

#include "codec/bands/bands_pack.h"
#include "linalg/matrix.h"

namespace kvspan {

// samples [n, stored]: components divided by their tokens' gains, in stored order. The step of
// least squared error of each: for a uniform quantizer by a fine search; for a trellis of four
// sizes about the one for a Gaussian of the same spread, on up to 1,024 samples. Cost: some 40
// passes over the samples, or coding the samples four times.
std::vector<float> fit_band_steps(const Matrix& samples, const BandsLayout& layout);

}  // namespace kvspan
