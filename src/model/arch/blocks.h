// SPDX-License-Identifier: Apache-2.0
// Building blocks that architectures share: reading weights with their shapes checked,
// self-attention, feed-forward. What differs between architectures stays in their own files.
#pragma once

#include <string>

#include "model/graph_builder.h"

namespace kvspan {

// Whether a weight matrix comes with a bias.
enum class Bias { kNone, kOptional, kRequired };

// "<name>.weight" [in, out] and "<name>.bias" [out].
Result<Linear> load_linear(GgufFile& file, const std::string& name, std::int32_t in,
                           std::int32_t out, Bias bias = Bias::kNone);
Result<Norm> load_rms_norm(GgufFile& file, const std::string& name, std::int32_t size,
                           float epsilon);
Result<Norm> load_layer_norm(GgufFile& file, const std::string& name, std::int32_t size,
                             float epsilon);
// The output matrix, or the token embedding where the two are tied.
Result<Linear> load_output(GgufFile& file, const ModelConfig& config);

// "blk.<layer>.<name>"
std::string layer_name(int layer, const char* name);

struct SelfAttention {
  struct Options {
    Bias qkv_bias = Bias::kOptional;
    Bias output_bias = Bias::kOptional;
    bool qk_norm = false;  // RMSNorm of each head's queries and keys, before RoPE
  };
  Linear queries, keys, values;  // or all three rows of one matrix:
  Linear fused;
  Linear output;
  Norm query_norm, key_norm;  // without weight: not applied
  RopeConfig rope;
  ggml_tensor* rope_factors = nullptr;
  LayerShape shape;

  // `shape.window` and `rope` are the config's; callers change them where a layer differs.
  static Result<SelfAttention> load(GgufFile& file, const ModelConfig& config, int layer,
                                    const Options& options);
  // Normed input [hidden, n] -> what is added to the residual [hidden, n].
  ggml_tensor* build(const GraphBuilder& graph, int layer, ggml_tensor* x) const;
};

// down(activation(gate(x)) * up(x))
struct GatedFeedForward {
  enum class Activation { kSilu, kGelu };
  Linear gate, up, down;
  Activation activation = Activation::kSilu;

  static Result<GatedFeedForward> load(GgufFile& file, const ModelConfig& config, int layer,
                                       Activation activation);
  ggml_tensor* build(const GraphBuilder& graph, ggml_tensor* x) const;
};

// down(gelu(up(x)))
struct PlainFeedForward {
  enum class Activation { kGeluTanh, kGeluErf };
  Linear up, down;
  Activation activation = Activation::kGeluTanh;

  static Result<PlainFeedForward> load(GgufFile& file, const ModelConfig& config, int layer,
                                       Activation activation);
  // "<arch>.hidden_activation" (gelu or gelu_new), which converters leave out where it is `usual`.
  static Result<Activation> read_activation(GgufFile& file, const ModelConfig& config,
                                            Activation usual);
  ggml_tensor* build(const GraphBuilder& graph, ggml_tensor* x) const;
};

}  // namespace kvspan
