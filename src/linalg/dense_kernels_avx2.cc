// SPDX-License-Identifier: Apache-2.0
#include "linalg/dense_kernels_body.h"

namespace kvspan::detail {

constinit const DenseKernels kDenseAvx2 = VectorKernels<4, 4>::table();

}  // namespace kvspan::detail
