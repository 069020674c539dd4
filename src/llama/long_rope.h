// SPDX-License-Identifier: Apache-2.0
// Long and short RoPE factors (Phi 3, MiniCPM 3): libllama chooses by the size of its own memory,
// which is small here whatever the context. Where the context asked for is longer than the model's
// original one, ROPE nodes get the long factors.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <memory>
#include <string>
#include <string_view>

#include "kvspan/result.h"

namespace kvspan {

class LongRope {
 public:
  static constexpr std::string_view kShortFactors = "rope_factors_short.weight";

  // Takes the factors from the model's file. kUnsupported where they are not there.
  Status read(const std::string& model_path);
  // Before a node is computed, or looked at: where it is a ROPE node with short factors.
  void replace(ggml_tensor* node) const noexcept;

 private:
  struct Free {
    void operator()(ggml_context* tensors) const { ggml_free(tensors); }
    void operator()(ggml_backend_buffer* memory) const { ggml_backend_buffer_free(memory); }
  };
  std::unique_ptr<ggml_context, Free> tensors_;
  std::unique_ptr<ggml_backend_buffer, Free> memory_;
  ggml_tensor* long_factors_ = nullptr;  // null: nothing is replaced
};

}  // namespace kvspan
