// SPDX-License-Identifier: Apache-2.0
// Learns what a model's attention layers are from the graphs that libllama builds for a few tokens:
// no table of architectures, no names of models. Whatever is not understood is refused with the
// reason, never guessed.
//
// An attention layer is a FLASH_ATTN_EXT node that reads two of libllama's memory tensors, and the
// SET_ROWS nodes that write them. Heads, dimensions, scale, soft cap, ALiBi and sinks stand in the
// node, rotation in the ROPE node behind the written keys, and which tokens a query sees in the
// mask.
#pragma once

#include <ggml.h>
#include <llama.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "kvspan/cache.h"
#include "llama/layer_trace.h"

namespace kvspan {

// One layer of the cache: keys and values that some attention nodes of a graph read.
struct AttentionLayer {
  const ggml_tensor* key_memory = nullptr;    // libllama's, which names the layer in every graph
  const ggml_tensor* value_memory = nullptr;  // the same where values are a part of the keys (MLA)
  int reads = 0;  // attention nodes of a graph; layers may share a cache
  LayerTrace trace;
};

struct ProbedModel {
  CacheShape shape;
  std::vector<AttentionLayer> layers;  // [shape.layers]
  std::size_t last_layer = 0;          // whose cache the last attention node of a graph reads
  bool recurrent = false;  // other layers keep a state of their own in libllama's memory
};

class GraphProbe {
 public:
  // Decodes a few tokens, whose results are worthless, in a context with an empty memory of four
  // cells or more and two sequences; the memory is empty afterwards. The context's eval callback
  // hands every node to see().
  Result<ProbedModel> run(llama_context* context);

  // Where ROPE nodes have short factors, the context length up to which they are meant; else 0.
  std::int32_t short_factors_until() const noexcept { return short_factors_until_; }

  // Just before the node is computed.
  void see(ggml_tensor* node);

 private:
  enum class Stage { kIdle, kLayers, kMasks };

  void see_attention(const ggml_tensor* node);
  void see_mask(const ggml_tensor* node);
  void refuse(std::string reason);
  Status finish();

  Stage stage_ = Stage::kIdle;
  std::int32_t window_ = 0;  // that the model slides, or cuts into chunks
  std::int32_t short_factors_until_ = 0;
  ProbedModel model_;
  std::map<const ggml_tensor*, ggml_tensor*> written_;  // memory -> the SET_ROWS node
  std::map<const ggml_tensor*, std::size_t> layer_of_;  // key memory -> layer
  std::set<const ggml_tensor*> read_;                   // memory that attention reads
  std::set<std::size_t> masks_seen_;                    // layers
  std::vector<const ggml_tensor*> nodes_;               // of the graph, in order
  std::string refusal_;                                 // the first reason
};

}  // namespace kvspan
