// SPDX-License-Identifier: Apache-2.0
// Attention as one custom node per layer of a ggml graph: the rows of each sequence in the batch go
// to that sequence's cache, which attends and keeps them. ggml's threads are the team, or each is
// one of its own where a batch has sequences for all.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kvspan/cache.h"
#include "model/activation_observer.h"
#include "model/sequence_shares.h"

namespace kvspan {

// What a thread needs to attend to a sequence alone.
struct LoneThread {
  std::unique_ptr<AttentionScratch, void (*)(AttentionScratch*)> scratch = make_attention_scratch();
  TeamState team;
  HelpWanted help;  // of threads that have attended to theirs
  std::optional<Error> error;
};

// What the attention nodes of a graph work on during one computation. Set before, read after.
struct AttentionRun {
  std::vector<SequenceRows> sequences;
  std::size_t whole = 0;  // the first of them, each of which one thread takes (sequence_shares.h)
  std::vector<std::unique_ptr<LoneThread>> alone;  // [threads]
  std::vector<std::int32_t> positions;             // [batch rows]
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

// queries [key_dim, query_heads, n], keys [key_dim, kv_heads, n], values [value_dim, kv_heads, n]
// -> [value_dim * query_heads, n]. All f32, rows of a head contiguous.
ggml_tensor* attention_node(ggml_context* ctx, ggml_tensor* queries, ggml_tensor* keys,
                            ggml_tensor* values, AttentionLayer* layer);

enum class Observed { kLayerInput, kPostNormInput };
// `x` [width, n] itself, shown to the run's observer when the graph gets there; without an observer
// no node at all.
ggml_tensor* observed_node(ggml_context* ctx, ggml_tensor* x, Observed what, AttentionLayer* layer);

}  // namespace kvspan
