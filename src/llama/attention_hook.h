// SPDX-License-Identifier: Apache-2.0
// Answers the attention nodes of libllama's graphs from kvspan's caches.
//
// libllama calls llama_context_params.cb_eval for every node just before computing it. There each
// FLASH_ATTN_EXT node becomes a CUSTOM node that asks the caches on ggml's own threads, and the
// SET_ROWS nodes that would fill libllama's memory become nothing: the graph stays one piece, rows
// arrive before they are rounded to f16, and a graph that libllama uses again stays replaced.
// Where a node's memory is a device's and so are the caches, ggml computes nothing of it and its
// result is made there (llama/device_answer.h). Where the caches are the host's, the node is
// computed over the few rows of its batch, copied here, and its result written over. A graph may
// end at any node (an abort callback, a device that fails): each attention node carries which one
// of the graph it is, and DecodeWork, which every decode sets anew, how far the batch is.
//
// A device may record what ggml computes of a graph that libllama uses again, answers with it, and
// replay it for later steps: ggml then stops behind the first node, and computes nothing of the
// rest.
#pragma once

#include <ggml.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "llama/activation_observer.h"
#include "llama/decode_work.h"
#include "llama/device_answer.h"
#include "llama/graph_probe.h"
#include "llama/long_rope.h"
#include "llama/offset_products.h"

namespace kvspan {

class AttentionHook {
 public:
  AttentionHook() = default;
  AttentionHook(const AttentionHook&) = delete;
  AttentionHook& operator=(const AttentionHook&) = delete;

  // For llama_context_params, with `this` as its user data.
  static bool on_node(ggml_tensor* node, bool ask, void* hook);

  // While it is set, nodes are shown to the probe and left alone. Null ends it.
  void set_probe(GraphProbe* probe) noexcept { probe_ = probe; }
  // What the probe has found: from now on nodes are answered.
  void set_model(ProbedModel model);
  const ProbedModel& model() const noexcept { return model_; }
  // Writes over results instead of replacing nodes, wherever their memory is: for tests.
  void set_overwrite(bool overwrite) noexcept { overwrite_ = overwrite; }
  // Asked for the nodes of sequences that it holds. Null: none.
  void set_device(std::shared_ptr<DeviceAnswer> device) noexcept { device_ = std::move(device); }
  DeviceAnswer* device() const noexcept { return device_.get(); }

  // Shows activations (llama/activation_observer.h); null ends it. Computes the graph in pieces.
  void set_observer(ActivationObserver* observer) noexcept { observer_ = observer; }

  // Graphs use these products and rotations instead of the file's.
  OffsetProducts products;
  LongRope long_rope;

  // Set before a decode, read after it.
  DecodeWork work;
  // Comes before each decode, when `work` is set.
  void begin_decode() noexcept { first_node_due_ = work.ubatches.size() == 1; }

 private:
  // One attention node of every graph. Nodes point to it.
  struct Node {
    AttentionHook* hook = nullptr;
    int layer = 0;
    bool stores = false;   // the first that reads its layer
    bool settles = false;  // the last that does
    bool last = false;     // of the graph
  };
  struct Watched {
    int layer = 0;
    bool post_norm = false;
    bool behind_last = false;  // computed after the last attention node of the graph
  };

  // What makes the queries of a node that a device answers, in a graph that is used again.
  struct QueryMaker {
    const Node* node;
    const ggml_tensor* tensor;
  };

  bool ask(ggml_tensor* node);
  bool ask_first(ggml_tensor* node);
  bool begin_step();
  bool ask_attention(ggml_tensor* node);
  bool held_by_device(const ggml_tensor* node) const;
  const Node* node_at(ggml_tensor* node);
  bool computed(ggml_tensor* node);
  void answer_on_device(ggml_tensor* node);
  void overwrite(ggml_tensor* node);
  void show(const ggml_tensor* node, const Watched& what) const;
  NodeRows rows_of(const Node& node, const ggml_tensor* tensor) const;
  void finish_node(const Node& node, int rows);
  static void compute(ggml_tensor* node, int member, int size, void* userdata);

  GraphProbe* probe_ = nullptr;
  ActivationObserver* observer_ = nullptr;
  bool overwrite_ = false;
  std::shared_ptr<DeviceAnswer> device_;
  ProbedModel model_;
  std::map<const ggml_tensor*, int> layer_of_;   // key memory -> layer
  std::vector<std::vector<Node>> nodes_;         // [layers][reads]
  std::multimap<std::string, Watched> watched_;  // names of nodes whose results are shown
  // SET_ROWS of the graph asked about, and which attention node reads its memory next.
  struct Store {
    ggml_tensor* node = nullptr;
    std::size_t reads = 0;
  };
  std::map<const ggml_tensor*, Store> stores_;  // by memory
  bool first_node_due_ = false;                 // of a decode of one graph
  bool graph_waits_ =
      false;  // ggml's products of experts wait for the device, which no recorded step can
  const ggml_tensor* stopped_at_ = nullptr;  // the first node, where a step is recorded or replayed
  std::map<const ggml_tensor*, QueryMaker> query_makers_;
  std::unique_ptr<ThreadPool> pool_;  // for results that are written over
  std::vector<float> key_copy_, value_copy_, query_copy_, out_copy_;
};

}  // namespace kvspan
