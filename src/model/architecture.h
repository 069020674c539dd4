// SPDX-License-Identifier: Apache-2.0
// A model architecture: reads its weights from a GGUF file and writes its graph. Adding one is a
// file in arch/ and a line in arch/table.cc.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "model/graph_builder.h"

namespace kvspan {

// Immutable after loading; points into the file, which must outlive it.
class Architecture {
 public:
  virtual ~Architecture() = default;
  virtual const ModelConfig& config() const noexcept = 0;
  virtual CacheShape cache_shape() const = 0;
  // Whether a norm stands between a layer's attention output and the residual stream.
  virtual bool has_post_attention_norm(int layer) const noexcept = 0;
  // The whole forward pass: logits [vocabulary, outputs].
  virtual ggml_tensor* build(const GraphBuilder& graph) const = 0;
};

struct ArchitectureInfo {
  std::string_view name;  // general.architecture
  std::string_view models;
  Result<std::unique_ptr<Architecture>> (*load)(GgufFile& file);
};

std::span<const ArchitectureInfo> all_architectures() noexcept;

// Fails, listing the supported ones, for any other architecture.
Result<std::unique_ptr<Architecture>> load_architecture(GgufFile& file);

}  // namespace kvspan
