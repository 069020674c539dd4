// SPDX-License-Identifier: Apache-2.0
// Attention as one custom node per layer of a ggml graph: the rows of each sequence in the batch go
// to that sequence's cache, which attends and keeps them. ggml's threads are the team.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvspan/cache.h"
#include "model/activation_observer.h"

namespace kvspan {

// The rows [begin, end) of the batch that belong to one sequence.
struct SequenceRows {
  KvCache* cache = nullptr;
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

// What the attention nodes of a graph work on during one computation. Set before, read after.
struct AttentionRun {
  std::vector<SequenceRows> sequences;
  std::vector<std::int32_t> positions;  // [batch rows]
  AttentionScratch* scratch = nullptr;
  ActivationObserver* observer = nullptr;  // graphs made while it is set look at activations
  TeamState team;
  // The first failure; later layers then leave the caches alone.
  std::optional<Error> error;
  double seconds = 0.0;  // spent in the nodes so far
};

// Per-layer argument of the node; lives as long as the graph.
struct AttentionLayer {
  AttentionRun* run = nullptr;
  int layer = 0;
};

// queries [key_dim, query_heads, n], keys and raw keys [key_dim, kv_heads, n], values
// [value_dim, kv_heads, n] -> [value_dim * query_heads, n]. All f32, rows of a head contiguous.
ggml_tensor* attention_node(ggml_context* ctx, ggml_tensor* queries, ggml_tensor* keys,
                            ggml_tensor* keys_raw, ggml_tensor* values, AttentionLayer* layer);

enum class Observed { kLayerInput, kPostNormInput };
// `x` [width, n] itself, shown to the run's observer when the graph gets there; without an observer
// no node at all.
ggml_tensor* observed_node(ggml_context* ctx, ggml_tensor* x, Observed what, AttentionLayer* layer);

}  // namespace kvspan
