// SPDX-License-Identifier: Apache-2.0
#include "linalg/dense_kernels_body.h"

namespace kvspan::detail {

constinit const DenseKernels kDenseNeon = VectorKernels<2, 8>::table();

}  // namespace kvspan::detail
