// SPDX-License-Identifier: Apache-2.0
#include "llama/graph_probe.h"

#include <ggml-backend.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/fail.h"
#include "llama/graph_nodes.h"
#include "llama/long_rope.h"

namespace kvspan {
namespace {

// Tokens at given positions of one sequence, the last one's logits wanted.
bool decode_at(llama_context* context, llama_seq_id sequence,
               std::span<const llama_pos> positions) {
  const auto count = static_cast<std::int32_t>(positions.size());
  llama_batch batch = llama_batch_init(count, 0, 1);
  batch.n_tokens = count;
  for (std::int32_t i = 0; i < count; ++i) {
    batch.token[i] = 0;
    batch.pos[i] = positions[static_cast<std::size_t>(i)];
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = sequence;
    batch.logits[i] = i + 1 == count;
  }
  const bool fine = llama_decode(context, batch) == 0;
  llama_synchronize(context);
  llama_batch_free(batch);
  return fine;
}

// ALiBi's slope of each head, as Press et al. 2021 choose them, for `max_bias` in place of 8.
std::vector<float> alibi_slopes(std::int32_t heads, float max_bias) {
  const int power = 1 << static_cast<int>(std::floor(std::log2(heads)));
  const double even = std::pow(2.0, -max_bias / power),
               odd = std::pow(2.0, -max_bias / 2.0 / power);
  std::vector<float> slopes;
  for (int h = 0; h < heads; ++h) {
    slopes.push_back(
        static_cast<float>(h < power ? std::pow(even, h + 1) : std::pow(odd, 2 * (h - power) + 1)));
  }
  return slopes;
}

}  // namespace

void GraphProbe::refuse(std::string reason) {
  if (refusal_.empty()) refusal_ = std::move(reason);
}

void GraphProbe::see(ggml_tensor* node) {
  if (stage_ == Stage::kIdle) return;
  if (stage_ == Stage::kMasks) {
    if (node->op == GGML_OP_FLASH_ATTN_EXT) see_mask(node);
    return;
  }
  nodes_.push_back(node);
  if (node->op == GGML_OP_ROPE && node->src[2] != nullptr &&
      node->src[2]->name == LongRope::kShortFactors) {
    short_factors_until_ = original_context_of(node);
  }
  if (node->op == GGML_OP_SET_ROWS) {
    written_[memory_of(node)] = node;
    return;
  }
  if (node->op == GGML_OP_FLASH_ATTN_EXT) return see_attention(node);
  if (is_view(node)) return;
  // Selection of tokens by other nodes, an index over keys: what kvspan's caches would not do.
  for (const ggml_tensor* source : node->src) {
    if (source != nullptr && written_.contains(memory_of(source))) {
      refuse(fmt::format("node '{}' ({}) reads the cache beside attention", node->name,
                         ggml_op_name(node->op)));
    }
  }
}

void GraphProbe::see_attention(const ggml_tensor* node) {
  const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2], *mask = node->src[3];
  const ggml_tensor *key_memory = memory_of(k), *value_memory = memory_of(v);
  const auto keys = written_.find(key_memory), values = written_.find(value_memory);
  if (keys == written_.end() || values == written_.end()) {
    return refuse("attention over keys or values that this graph does not store");
  }
  read_.insert({key_memory, value_memory});
  LayerShape layer;
  layer.query_heads = static_cast<std::int32_t>(q->ne[2]);
  layer.kv_heads = static_cast<std::int32_t>(k->ne[2]);
  layer.key_dim = static_cast<std::int32_t>(k->ne[0]);
  layer.value_dim = static_cast<std::int32_t>(v->ne[0]);
  layer.logit_scale = float_param(node, 0);
  layer.soft_cap = float_param(node, 2);
  const ggml_tensor *key_rows = keys->second->src[0], *value_rows = values->second->src[0];
  AttentionLayer found;
  if (const ggml_tensor* rope = rope_behind(key_rows)) layer.rope = rope_of(rope);
  if (const float max_bias = float_param(node, 1); max_bias != 0.0f) {
    layer.alibi = alibi_slopes(layer.query_heads, max_bias);
  }
  if (const ggml_tensor* sinks = node->src[4]) {
    layer.sinks = read_floats(sinks);
    if (layer.sinks.size() != static_cast<std::size_t>(layer.query_heads)) {
      refuse(fmt::format("attention sinks '{}' that are not one f32 number for each head",
                         sinks->name));
    }
  }
  // Sparse attention hides tokens by a mask that the graph computes; a plain one comes from
  // outside.
  if (mask == nullptr || mask->op != GGML_OP_NONE || mask->type != GGML_TYPE_F16) {
    refuse("a mask that the model computes itself (sparse attention)");
  }
  if (k->ne[3] != 1 || q->ne[3] != 1) refuse("memory in several streams");
  if (key_rows->type != GGML_TYPE_F32 || value_rows->type != GGML_TYPE_F32) {
    refuse(fmt::format(
        "keys or values of type {}; kvspan reads f32",
        ggml_type_name(key_rows->type != GGML_TYPE_F32 ? key_rows->type : value_rows->type)));
  }
  if (v->ne[2] != k->ne[2] || q->ne[0] != k->ne[0] || layer.query_heads % layer.kv_heads != 0) {
    refuse(fmt::format("{} query heads of {} over {} KV heads of {}", q->ne[2], q->ne[0], k->ne[2],
                       k->ne[0]));
  }
  const auto known = layer_of_.find(key_memory);
  if (known != layer_of_.end()) {
    if (!(model_.shape.layers[known->second] == layer)) {
      refuse("layers that share keys and values, but not the shape of attention");
    }
    ++model_.layers[known->second].reads;
    model_.last_layer = known->second;
    return;
  }
  layer_of_[key_memory] = model_.last_layer = model_.layers.size();
  found.key_memory = key_memory;
  found.value_memory = value_memory;
  found.reads = 1;
  model_.shape.layers.push_back(std::move(layer));
  model_.layers.push_back(std::move(found));
}

// Cells 0 to 2 hold positions 0, 1 and window - 1; the query is at `window`.
void GraphProbe::see_mask(const ggml_tensor* node) {
  const auto known = layer_of_.find(memory_of(node->src[1]));
  if (known == layer_of_.end()) return refuse("a layer that only some graphs have");
  std::array<ggml_fp16_t, 3> cells;
  ggml_backend_tensor_get(node->src[3], cells.data(), 0, sizeof cells);
  const auto seen = [&](std::size_t i) { return ggml_fp16_to_fp32(cells[i]) > -1e4f; };
  std::int32_t window = 0, chunk = 0;
  if (!seen(0) && seen(1) && seen(2)) {
    window = window_;
  } else if (!seen(0) && !seen(1) && !seen(2)) {
    chunk = window_;
  } else if (!seen(0) || !seen(1) || !seen(2)) {
    refuse(fmt::format("a mask that is neither causal, a window of {} nor chunks of {}", window_,
                       window_));
  }
  LayerShape& layer = model_.shape.layers[known->second];
  if (!masks_seen_.insert(known->second).second &&
      (layer.window != window || layer.chunk != chunk)) {
    refuse("layers that share keys and values, but not the mask");
  }
  layer.window = window;
  layer.chunk = chunk;
}

Result<ProbedModel> GraphProbe::run(llama_context* context) {
  *this = {};
  const llama_model* model = llama_get_model(context);
  llama_memory_t memory = llama_get_memory(context);
  if (memory == nullptr) return fail(ErrorCode::kUnsupported, "the model has no KV cache");
  if (llama_model_has_encoder(model)) {
    return fail(ErrorCode::kUnsupported, "models with an encoder are not supported");
  }
  llama_memory_clear(memory, false);
  stage_ = Stage::kLayers;
  const std::array<llama_pos, 2> first{0, 1};
  bool fine = decode_at(context, 0, first);
  stage_ = Stage::kIdle;
  std::map<std::string, int> names;
  for (const ggml_tensor* node : nodes_) ++names[node->name];
  for (AttentionLayer& layer : model_.layers) {
    const auto attention = std::find_if(nodes_.begin(), nodes_.end(), [&](const ggml_tensor* node) {
      return node->op == GGML_OP_FLASH_ATTN_EXT && memory_of(node->src[1]) == layer.key_memory;
    });
    layer.trace = trace_layer(nodes_, *attention, written_[layer.key_memory]->src[0]);
    // Activations are found again by these names.
    for (std::string* name : {&layer.trace.input, &layer.trace.post_norm_input}) {
      if (names[*name] != 1) name->clear();
    }
  }
  window_ = llama_model_n_swa(model);
  if (fine && window_ > 0) {
    if (window_ < 3) {
      refuse(fmt::format("a window of {} tokens", window_));
    } else {
      // Positions of a sequence follow each other; a far one comes in by way of another sequence.
      const std::array<llama_pos, 1> far{window_ - 1}, query{window_};
      fine = decode_at(context, 1, far);
      llama_memory_seq_cp(memory, 1, 0, -1, -1);
      stage_ = Stage::kMasks;
      fine = fine && decode_at(context, 0, query);
      stage_ = Stage::kIdle;
    }
  }
  llama_memory_clear(memory, false);
  model_.recurrent = llama_model_is_recurrent(model) || llama_model_is_hybrid(model);
  if (!fine) return fail(ErrorCode::kUnsupported, "libllama cannot decode a token of this model");
  KVSPAN_CHECK_OK(finish());
  return std::move(model_);
}

Status GraphProbe::finish() {
  if (model_.layers.empty()) refuse("the graph has no FLASH_ATTN_EXT node");
  for (const auto& [memory, node] : written_) {
    if (!read_.contains(memory))
      refuse(fmt::format("rows stored in '{}' that no attention reads", memory->name));
  }
  if (refusal_.empty()) return {};
  return fail(ErrorCode::kUnsupported, "not supported: {}", refusal_);
}

}  // namespace kvspan
