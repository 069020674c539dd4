// SPDX-License-Identifier: Apache-2.0
#include "codec/kernels.h"

#include "base/kernels_by_level.h"

namespace kvspan {

const CodecKernels& codec_kernels(CpuLevel level) noexcept {
  static constexpr KernelsOfLevel<const CodecKernels*> kTable[] = {
      {CpuLevel::kReference, &detail::kCodecKernelsRef},
#if defined(__aarch64__)
      {CpuLevel::kNeon, &detail::kCodecKernelsNeon},
#elif defined(__x86_64__)
      {CpuLevel::kAvx2, &detail::kCodecKernelsAvx2},
#endif
  };
  return *kernels_for(level, kTable);
}

}  // namespace kvspan
