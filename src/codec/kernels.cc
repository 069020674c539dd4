// SPDX-License-Identifier: Apache-2.0
#include "codec/kernels.h"

namespace kvspan {

const CodecKernels& codec_kernels(CpuLevel level) noexcept {
  switch (level) {
#if defined(__aarch64__)
    case CpuLevel::kNeon:
    case CpuLevel::kNeonI8mm:
      return detail::kCodecKernelsNeon;
#elif defined(__x86_64__)
    case CpuLevel::kAvx2:
    case CpuLevel::kAvx512:
    case CpuLevel::kAmx:
      return detail::kCodecKernelsAvx2;
#endif
    default:
      return detail::kCodecKernelsRef;
  }
}

}  // namespace kvspan
