// SPDX-License-Identifier: Apache-2.0
#include "linalg/dense_kernels.h"

namespace kvspan::detail {

const DenseKernels& dense_kernels(CpuLevel level) noexcept {
  switch (level) {
#if defined(__aarch64__)
    case CpuLevel::kNeon:
    case CpuLevel::kNeonI8mm:
      return kDenseNeon;
#elif defined(__x86_64__)
    case CpuLevel::kAvx2:
      return kDenseAvx2;
    case CpuLevel::kAvx512:
    case CpuLevel::kAmx:
      return kDenseAvx512;
#endif
    default:
      return kDenseReference;
  }
}

}  // namespace kvspan::detail
