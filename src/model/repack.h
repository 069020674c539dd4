// SPDX-License-Identifier: Apache-2.0
// Weights in the layout that ggml multiplies fastest on this processor. For some types (4 and 8
// bits) ggml has kernels over interleaved rows; the weights are then copied once, at load, and the
// file's own pages are given back. Q4_1 has none, and is split for Q4_0's (model/block_offsets.h).
// All others stay mapped.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <memory>
#include <vector>

#include "model/block_offsets.h"

namespace kvspan {

// A matrix that is only multiplied with.
struct Matrix {
  ggml_tensor* weight = nullptr;          // [in, out]
  const BlockOffsets* offsets = nullptr;  // to add to the product, or null
};

class Repacker {
 public:
  Repacker();
  ~Repacker();
  Repacker(const Repacker&) = delete;
  Repacker& operator=(const Repacker&) = delete;

  // A copy of the matrix that lives as long as the Repacker, or the matrix itself where ggml has no
  // other layout.
  Matrix repack(ggml_tensor* matrix);

 private:
  struct Free {
    void operator()(ggml_context* tensors) const { ggml_free(tensors); }
    void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
  };
  // The layout in which ggml multiplies such a matrix as if it were of `type`, or null.
  ggml_backend_buffer_type_t layout_of(const ggml_tensor* matrix, ggml_type type) const;
  // Null where there is no memory.
  ggml_tensor* copy(const ggml_tensor* matrix, ggml_type type, const void* data,
                    ggml_backend_buffer_type_t layout);

  ggml_backend_dev_t device_ = nullptr;
  std::vector<ggml_backend_buffer_type_t> layouts_;
  std::vector<std::unique_ptr<ggml_context, Free>> tensors_;
  std::vector<std::unique_ptr<ggml_backend_buffer, Free>> buffers_;
  std::vector<std::unique_ptr<const BlockOffsets>> offsets_;
};

}  // namespace kvspan
