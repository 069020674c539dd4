// SPDX-License-Identifier: Apache-2.0
// Attention of a prompt's many queries to one sequence of a device cache: its rows are rebuilt once
// for all of them, and ggml's own attention reads these.
#pragma once

#include <cuda_runtime.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "kvspan/cuda.h"
#include "kvspan/tensor_view.h"
#include "llama/cuda/causal_mask.h"

namespace kvspan {

class PromptAttention {
 public:
  // Queries of a sequence from which on this is sooner done than attention to codes.
  static constexpr std::int32_t kLeastQueries = 64;
  // For DeviceOptions.
  static constexpr std::int32_t kRebuildTokens = 4096;

  // Whether it can be done: ggml has a kernel for the layer and the device memory for its rows.
  // queries: of a sequence that then has so many tokens. Takes that memory.
  Result<bool> ready(ggml_backend_t backend, const LayerShape& layer, std::int32_t queries,
                     std::int32_t tokens);
  // The last positions of the sequence, whose rows have been appended. After `ready`, on the
  // backend's stream.
  Status attend(ggml_backend_t backend, DeviceCache& cache, int layer, std::int32_t sequence,
                std::int32_t tokens, const TensorView<const float, 3>& queries,
                const TensorView<float, 3>& out, cudaStream_t stream);

 private:
  struct FreeBuffer {
    void operator()(ggml_backend_buffer_t buffer) const { ggml_backend_buffer_free(buffer); }
  };
  std::unique_ptr<ggml_backend_buffer, FreeBuffer> memory_;  // keys, values, mask
  std::optional<CausalMask> mask_;  // as it lies in the memory, at mask_at_
  const void* mask_at_ = nullptr;
};

}  // namespace kvspan
