// SPDX-License-Identifier: Apache-2.0
#include "model/graph_builder.h"

namespace kvspan {
namespace {

ggml_tensor* new_input(ggml_context* ctx, std::int32_t count, const char* name) {
  ggml_tensor* tensor = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, count);
  ggml_set_name(tensor, name);
  ggml_set_input(tensor);
  return tensor;
}

}  // namespace

GraphBuilder::GraphBuilder(ggml_context* ctx, std::int32_t tokens, std::int32_t outputs,
                           std::span<AttentionLayer> layers)
    : ctx_(ctx), layers_(layers) {
  inputs_.tokens = new_input(ctx, tokens, "tokens");
  inputs_.positions = new_input(ctx, tokens, "positions");
  inputs_.outputs = new_input(ctx, outputs, "outputs");
}

ggml_tensor* GraphBuilder::embed(ggml_tensor* table) const {
  return ggml_get_rows(ctx_, table, inputs_.tokens);
}

ggml_tensor* GraphBuilder::embed_positions(ggml_tensor* table) const {
  return ggml_get_rows(ctx_, table, inputs_.positions);
}

ggml_tensor* GraphBuilder::norm(ggml_tensor* x, const Norm& norm) const {
  x = norm.root_mean_square ? ggml_rms_norm(ctx_, x, norm.epsilon)
                            : ggml_norm(ctx_, x, norm.epsilon);
  if (norm.weight != nullptr) x = ggml_mul(ctx_, x, norm.weight);
  if (norm.bias != nullptr) x = ggml_add(ctx_, x, norm.bias);
  return x;
}

ggml_tensor* GraphBuilder::linear(ggml_tensor* x, const Linear& linear) const {
  const auto& [weight, offsets] = linear.matrix;
  ggml_tensor* y = ggml_mul_mat(ctx_, weight, x);
  if (offsets != nullptr) y = offsets->add(ctx_, y, x);
  return linear.bias == nullptr ? y : ggml_add(ctx_, y, linear.bias);
}

ggml_tensor* GraphBuilder::heads(ggml_tensor* x, std::int32_t dim, std::int32_t count) const {
  return ggml_reshape_3d(ctx_, x, dim, count, x->ne[1]);
}

ggml_tensor* GraphBuilder::rope(ggml_tensor* x, const RopeConfig& rope,
                                ggml_tensor* factors) const {
  if (rope.rotated_dims == 0) return x;
  const int mode = rope.pairs == Rope::Pairs::kHalves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
  return ggml_rope_ext(ctx_, x, inputs_.positions, factors, rope.rotated_dims, mode,
                       rope.original_context, rope.base, rope.scale, rope.extrapolation,
                       rope.magnitude, rope.beta_fast, rope.beta_slow);
}

ggml_tensor* GraphBuilder::attend(int layer, ggml_tensor* queries, ggml_tensor* keys,
                                  ggml_tensor* values) const {
  return attention_node(ctx_, queries, keys, values, &layers_[static_cast<std::size_t>(layer)]);
}

ggml_tensor* GraphBuilder::observe(int layer, Observed what, ggml_tensor* x) const {
  return observed_node(ctx_, x, what, &layers_[static_cast<std::size_t>(layer)]);
}

ggml_tensor* GraphBuilder::select_outputs(ggml_tensor* x) const {
  return ggml_get_rows(ctx_, x, inputs_.outputs);
}

}  // namespace kvspan
