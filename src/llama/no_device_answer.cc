// SPDX-License-Identifier: Apache-2.0
// Of a build without CUDA.
#include "base/fail.h"
#include "llama/device_answer.h"

namespace kvspan {

Result<std::unique_ptr<DeviceAnswer>> make_device_answer(ggml_backend_dev_t) {
  return fail(ErrorCode::kUnsupported, "built without CUDA: configure with -DKVSPAN_CUDA=ON");
}

}  // namespace kvspan
