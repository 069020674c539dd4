// SPDX-License-Identifier: Apache-2.0
// What it costs, by the calibration's model, to keep only the leading directions of a head.
#pragma once

#include <cstddef>

#include "linalg/symmetric_eigen.h"

namespace kvspan {

// tr(M (I-P) G (I-P)), P onto the first r directions of G = E[x x']: the expected e' M e of the
// part e = (I-P)x that is left out, where M = E[w w'] of a vector w independent of x. For keys, w
// is the query times the logit scale, and the result the mean squared error of a logit. For values
// M is the output metric, and the result the mean squared error in the residual stream, over its
// energy, of a query head that attends to one token.
double discarded_energy(MatrixViewD M, const SymmetricEigen& G, std::size_t r);

}  // namespace kvspan
