// SPDX-License-Identifier: Apache-2.0
// Which devices libllama loads a model for.
#pragma once

#include <llama.h>

namespace kvspan {

// All layers of a GPU on the first one, where their caches are too; none is started without layers for
// it, which takes time and memory.
inline void use_one_device(llama_model_params& params) {
  static ggml_backend_dev_t none[] = {nullptr};
  if (params.n_gpu_layers == 0) {
    params.devices = none;
  } else {
    params.split_mode = LLAMA_SPLIT_MODE_NONE;
  }
}

}  // namespace kvspan
