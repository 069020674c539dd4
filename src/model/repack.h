// SPDX-License-Identifier: Apache-2.0
// Weights in the layout that ggml multiplies fastest on this processor. For some types (4 and 8
// bits) ggml has kernels over interleaved rows; the weights are then copied once, at load, and the
// file's own pages are given back. All others stay mapped.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <memory>
#include <vector>

namespace kvspan {

class Repacker {
 public:
  Repacker();
  ~Repacker();
  Repacker(const Repacker&) = delete;
  Repacker& operator=(const Repacker&) = delete;

  // A copy of the matrix that lives as long as the Repacker, or null where ggml has no other
  // layout.
  ggml_tensor* repack(const ggml_tensor* matrix);

 private:
  struct Free {
    void operator()(ggml_context* tensors) const { ggml_free(tensors); }
    void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
  };
  ggml_backend_dev_t device_ = nullptr;
  std::vector<ggml_backend_buffer_type_t> layouts_;
  std::vector<std::unique_ptr<ggml_context, Free>> tensors_;
  std::vector<std::unique_ptr<ggml_backend_buffer, Free>> buffers_;
};

}  // namespace kvspan
