// SPDX-License-Identifier: Apache-2.0
#include "linalg/dense_kernels_body.h"

namespace kvspan::detail {

constinit const DenseKernels kDenseAvx512 = VectorKernels<8, 8>::table();

}  // namespace kvspan::detail
