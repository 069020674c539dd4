// SPDX-License-Identifier: Apache-2.0
#include "model/arch/blocks.h"

#include "base/fail.h"

namespace kvspan {
namespace {

// Rows [first, first + dim * count) of a fused projection [total, n] as [dim, count, n].
ggml_tensor* slice_heads(const GraphBuilder& graph, ggml_tensor* fused, std::int64_t first,
                         std::int32_t dim, std::int32_t count) {
  const std::size_t element = ggml_element_size(fused);
  return ggml_view_3d(graph.ctx(), fused, dim, count, fused->ne[1],
                      static_cast<std::size_t>(dim) * element, fused->nb[1],
                      static_cast<std::size_t>(first) * element);
}

// GELU's tanh form, x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), from exact operations: ggml_gelu
// looks it up in a table of halves, which costs three digits of the logits.
ggml_tensor* gelu_tanh(ggml_context* ctx, ggml_tensor* x) {
  constexpr float kScale = 1.5957691216f;
  ggml_tensor* slope = ggml_scale_bias(ctx, ggml_sqr(ctx, x), kScale * 0.044715f, kScale);
  return ggml_mul(ctx, x, ggml_sigmoid(ctx, ggml_mul(ctx, slope, x)));
}

}  // namespace

std::string layer_name(int layer, const char* name) {
  return fmt::format("blk.{}.{}", layer, name);
}

Result<Linear> load_linear(GgufFile& file, const std::string& name, std::int32_t in,
                           std::int32_t out, Bias bias) {
  Linear linear;
  KVSPAN_TRY(linear.matrix, file.require_matrix(name + ".weight", in, out));
  const bool present = file.find_tensor(name + ".bias") != nullptr;
  if (bias == Bias::kRequired || (bias == Bias::kOptional && present)) {
    KVSPAN_TRY(linear.bias, file.require_tensor(name + ".bias", out));
  }
  return linear;
}

Result<Norm> load_rms_norm(GgufFile& file, const std::string& name, std::int32_t size,
                           float epsilon) {
  Norm norm{nullptr, nullptr, epsilon, true};
  KVSPAN_TRY(norm.weight, file.require_tensor(name + ".weight", size));
  return norm;
}

Result<Norm> load_layer_norm(GgufFile& file, const std::string& name, std::int32_t size,
                             float epsilon) {
  Norm norm{nullptr, nullptr, epsilon, false};
  KVSPAN_TRY(norm.weight, file.require_tensor(name + ".weight", size));
  KVSPAN_TRY(norm.bias, file.require_tensor(name + ".bias", size));
  return norm;
}

Result<Linear> load_output(GgufFile& file, const ModelConfig& config) {
  const bool tied = file.find_tensor("output.weight") == nullptr;
  return load_linear(file, tied ? "token_embd" : "output", config.hidden, config.vocabulary,
                     Bias::kOptional);
}

Result<SelfAttention> SelfAttention::load(GgufFile& file, const ModelConfig& config, int layer,
                                          const Options& options) {
  SelfAttention block;
  const std::int32_t query_width = config.query_heads * config.key_dim;
  const std::int32_t key_width = config.kv_heads * config.key_dim;
  const std::int32_t value_width = config.kv_heads * config.value_dim;
  const auto linear = [&](const char* name, std::int32_t out) {
    return load_linear(file, layer_name(layer, name), config.hidden, out, options.qkv_bias);
  };
  if (file.find_tensor(layer_name(layer, "attn_qkv.weight")) != nullptr) {
    KVSPAN_TRY(block.fused, linear("attn_qkv", query_width + key_width + value_width));
  } else {
    KVSPAN_TRY(block.queries, linear("attn_q", query_width));
    KVSPAN_TRY(block.keys, linear("attn_k", key_width));
    KVSPAN_TRY(block.values, linear("attn_v", value_width));
  }
  KVSPAN_TRY(block.output, load_linear(file, layer_name(layer, "attn_output"),
                                       config.query_heads * config.value_dim, config.hidden,
                                       options.output_bias));
  if (options.qk_norm) {
    KVSPAN_TRY(block.query_norm, load_rms_norm(file, layer_name(layer, "attn_q_norm"),
                                               config.key_dim, config.norm_epsilon));
    KVSPAN_TRY(block.key_norm, load_rms_norm(file, layer_name(layer, "attn_k_norm"), config.key_dim,
                                             config.norm_epsilon));
  }
  block.rope = config.rope;
  if (!config.rope.factors.empty()) block.rope_factors = file.find_tensor("rope_freqs.weight");
  block.shape = config.default_layer_shape();
  return block;
}

ggml_tensor* SelfAttention::build(const GraphBuilder& graph, int layer, ggml_tensor* x) const {
  ggml_tensor *q = nullptr, *k = nullptr, *v = nullptr;
  if (fused.matrix.weight != nullptr) {
    ggml_tensor* all = graph.linear(x, fused);
    const std::int64_t query_width = std::int64_t{shape.query_heads} * shape.key_dim;
    const std::int64_t key_width = std::int64_t{shape.kv_heads} * shape.key_dim;
    q = slice_heads(graph, all, 0, shape.key_dim, shape.query_heads);
    k = slice_heads(graph, all, query_width, shape.key_dim, shape.kv_heads);
    v = slice_heads(graph, all, query_width + key_width, shape.value_dim, shape.kv_heads);
  } else {
    q = graph.heads(graph.linear(x, queries), shape.key_dim, shape.query_heads);
    k = graph.heads(graph.linear(x, keys), shape.key_dim, shape.kv_heads);
    v = graph.heads(graph.linear(x, values), shape.value_dim, shape.kv_heads);
  }
  if (query_norm.weight != nullptr) q = graph.norm(q, query_norm);
  if (key_norm.weight != nullptr) k = graph.norm(k, key_norm);
  ggml_tensor* attended =
      graph.attend(layer, graph.rope(q, rope, rope_factors), graph.rope(k, rope, rope_factors), v);
  return graph.linear(attended, output);
}

Result<GatedFeedForward> GatedFeedForward::load(GgufFile& file, const ModelConfig& config,
                                                int layer, Activation activation) {
  GatedFeedForward block;
  block.activation = activation;
  const std::int32_t in = config.hidden, middle = config.feed_forward;
  KVSPAN_TRY(block.gate,
             load_linear(file, layer_name(layer, "ffn_gate"), in, middle, Bias::kOptional));
  KVSPAN_TRY(block.up, load_linear(file, layer_name(layer, "ffn_up"), in, middle, Bias::kOptional));
  KVSPAN_TRY(block.down,
             load_linear(file, layer_name(layer, "ffn_down"), middle, in, Bias::kOptional));
  return block;
}

ggml_tensor* GatedFeedForward::build(const GraphBuilder& graph, ggml_tensor* x) const {
  ggml_tensor* gated = graph.linear(x, gate);
  ggml_tensor* raised = graph.linear(x, up);
  ggml_tensor* product = activation == Activation::kSilu
                             ? ggml_swiglu_split(graph.ctx(), gated, raised)
                             : ggml_mul(graph.ctx(), gelu_tanh(graph.ctx(), gated), raised);
  return graph.linear(product, down);
}

Result<PlainFeedForward> PlainFeedForward::load(GgufFile& file, const ModelConfig& config,
                                                int layer, Activation activation) {
  PlainFeedForward block;
  block.activation = activation;
  const std::int32_t in = config.hidden, middle = config.feed_forward;
  KVSPAN_TRY(block.up, load_linear(file, layer_name(layer, "ffn_up"), in, middle, Bias::kRequired));
  KVSPAN_TRY(block.down,
             load_linear(file, layer_name(layer, "ffn_down"), middle, in, Bias::kRequired));
  return block;
}

Result<PlainFeedForward::Activation> PlainFeedForward::read_activation(GgufFile& file,
                                                                       const ModelConfig& config,
                                                                       Activation usual) {
  const std::string key = config.architecture + ".hidden_activation";
  KVSPAN_TRY(const auto found, file.find_string(key));
  if (!found) return usual;
  const std::string_view name = *found;
  if (name == "gelu") return Activation::kGeluErf;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  return fail(ErrorCode::kUnsupported, "'{}': {} is '{}'; supported: gelu, gelu_new", file.path(),
              key, name);
}

ggml_tensor* PlainFeedForward::build(const GraphBuilder& graph, ggml_tensor* x) const {
  x = graph.linear(x, up);
  x = activation == Activation::kGeluErf ? ggml_gelu_erf(graph.ctx(), x)
                                         : gelu_tanh(graph.ctx(), x);
  return graph.linear(x, down);
}

}  // namespace kvspan
