// SPDX-License-Identifier: Apache-2.0
#include "linalg/dense_kernels.h"

#include "base/kernels_by_level.h"

namespace kvspan::detail {

const DenseKernels& dense_kernels(CpuLevel level) noexcept {
  static const KernelsOfLevel<const DenseKernels*> kTable[] = {
      {CpuLevel::kReference, &kDenseReference},
#if defined(__aarch64__)
      {CpuLevel::kNeon, &kDenseNeon},
#elif defined(__x86_64__)
      {CpuLevel::kAvx2, &kDenseAvx2},
      {CpuLevel::kAvx512, &kDenseAvx512},
#endif
  };
  return *kernels_for(level, kTable);
}

}  // namespace kvspan::detail
