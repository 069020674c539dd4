// SPDX-License-Identifier: Apache-2.0
// Products with Q4_1 weights over interleaved rows. ggml has such kernels for Q4_0 and others, and
// libllama lays weights out for them when it loads a model; Q4_1 has none. A Q4_1 matrix is split
// into a Q4_0 one and offsets of its blocks (llama/block_offsets.h), and the product nodes of
// graphs are given the former, whose product adds the latter.
//
// This needs one thing that is not in ggml's public headers: its traits of tensors that are laid
// out anew (ggml/src/ggml-cpu/traits.h of the pinned archive).
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <map>
#include <memory>
#include <vector>

namespace kvspan {

class OffsetProducts {
 public:
  OffsetProducts();
  ~OffsetProducts();
  OffsetProducts(const OffsetProducts&) = delete;
  OffsetProducts& operator=(const OffsetProducts&) = delete;

  // Before a node is computed: a product with a Q4_1 weight gets the split weight, which is made
  // when it is first seen. Other nodes, and weights without room or layout, stay as they are.
  void replace(ggml_tensor* node);

 private:
  struct Split;
  Split* split_of(const ggml_tensor* weight);

  ggml_backend_dev_t device_ = nullptr;
  std::vector<ggml_backend_buffer_type_t> layouts_;
  std::map<const ggml_tensor*, std::unique_ptr<Split>> splits_;  // null: stays as it is
};

}  // namespace kvspan
