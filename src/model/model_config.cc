// SPDX-License-Identifier: Apache-2.0
#include "model/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fail.h"

namespace kvspan {
namespace {

// Reads keys under "<architecture>." with a default, or as required.
class Keys {
 public:
  Keys(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix) + ".") {}

  Status number(const char* key, float& out) const {
    KVSPAN_TRY(const auto value, file_.find_float(prefix_ + key));
    if (value) out = static_cast<float>(*value);
    return {};
  }
  Status count(const char* key, std::int32_t& out) const {
    KVSPAN_TRY(const auto value, file_.find_int(prefix_ + key));
    return value ? store(key, *value, out) : Status();
  }
  Status required_count(const char* key, std::int32_t& out) const {
    KVSPAN_TRY(const auto value, file_.require_int(prefix_ + key));
    return store(key, value, out);
  }
  // A count that may be given per layer, as long as all layers agree.
  Status uniform_count(const char* key, std::int32_t& out) const {
    KVSPAN_TRY(const auto values, file_.find_ints(prefix_ + key));
    if (!values || values->empty()) return {};
    for (const std::int64_t value : *values) {
      if (value != values->front()) {
        return fail(ErrorCode::kUnsupported, "'{}': key '{}{}' differs between layers ({} and {})",
                    file_.path(), prefix_, key, values->front(), value);
      }
    }
    return store(key, values->front(), out);
  }
  Result<std::string> text(const char* key, std::string fallback) const {
    KVSPAN_TRY(auto value, file_.find_string(prefix_ + key));
    return value ? *std::move(value) : std::move(fallback);
  }

 private:
  Status store(const char* key, std::int64_t value, std::int32_t& out) const {
    if (value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
      return fail(ErrorCode::kCorruptData, "'{}': key '{}{}' is {}, which is out of range",
                  file_.path(), prefix_, key, value);
    }
    out = static_cast<std::int32_t>(value);
    return {};
  }

  const GgufFile& file_;
  std::string prefix_;
};

Status read_rope(const GgufFile& file, const Keys& keys, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.rotated_dims = config.key_dim;
  KVSPAN_CHECK_OK(keys.count("rope.dimension_count", rope.rotated_dims));
  if (rope.rotated_dims > config.key_dim || rope.rotated_dims % 2 != 0) {
    return fail(ErrorCode::kCorruptData,
                "'{}': rope.dimension_count is {}; it must be even and at most the head size {}",
                file.path(), rope.rotated_dims, config.key_dim);
  }
  KVSPAN_CHECK_OK(keys.number("rope.freq_base", rope.base));

  KVSPAN_TRY(const std::string scaling, keys.text("rope.scaling.type", "linear"));
  if (scaling != "none" && scaling != "linear" && scaling != "yarn") {
    return fail(ErrorCode::kUnsupported,
                "'{}': rope.scaling.type '{}' is not supported; supported: none, linear, yarn "
                "(Llama 3's is a tensor of factors)",
                file.path(), scaling);
  }
  float factor = 0.0f;
  KVSPAN_CHECK_OK(keys.number("rope.scale_linear", factor));  // the older name
  KVSPAN_CHECK_OK(keys.number("rope.scaling.factor", factor));
  if (factor > 0.0f && scaling != "none") rope.scale = 1.0f / factor;

  rope.original_context = config.context;
  KVSPAN_CHECK_OK(keys.count("rope.scaling.original_context_length", rope.original_context));
  if (scaling == "yarn") {
    rope.extrapolation = 1.0f;
    KVSPAN_CHECK_OK(keys.number("rope.scaling.yarn_ext_factor", rope.extrapolation));
    KVSPAN_CHECK_OK(keys.number("rope.scaling.yarn_beta_fast", rope.beta_fast));
    KVSPAN_CHECK_OK(keys.number("rope.scaling.yarn_beta_slow", rope.beta_slow));
    // ggml multiplies by YaRN's 1 + 0.1 ln(factor) itself; a log multiplier divides some of it
    // away.
    float log_multiplier = 0.0f;
    KVSPAN_CHECK_OK(keys.number("rope.scaling.yarn_log_multiplier", log_multiplier));
    if (log_multiplier != 0.0f && rope.scale < 1.0f) {
      rope.magnitude /= 1.0f - 0.1f * log_multiplier * std::log(rope.scale);
    }
  }
  float attention_factor = 1.0f;
  KVSPAN_CHECK_OK(keys.number("rope.scaling.attn_factor", attention_factor));
  rope.magnitude *= attention_factor;

  if (const ggml_tensor* factors = file.find_tensor("rope_freqs.weight")) {
    if (factors->type != GGML_TYPE_F32 || factors->ne[0] != rope.rotated_dims / 2) {
      return fail(ErrorCode::kCorruptData, "'{}': rope_freqs.weight must be {} f32 numbers",
                  file.path(), rope.rotated_dims / 2);
    }
    const auto* data = static_cast<const float*>(factors->data);
    rope.factors.assign(data, data + factors->ne[0]);
  }
  return {};
}

}  // namespace

Rope RopeConfig::numbers() const {
  Rope rope{pairs, rotated_dims, {}, magnitude};
  const double n = rotated_dims;
  // YaRN (Peng et al. 2023): pairs that turn often within the original context keep their angle,
  // those that turn seldom are interpolated, with a linear ramp between the pairs found here.
  const auto pair_turning = [&](double turns) {
    return n * std::log(original_context / (turns * 2.0 * M_PI)) / (2.0 * std::log(double{base}));
  };
  double low = 0.0, high = 0.0;
  if (extrapolation != 0.0f) {
    low = std::max(0.0, std::floor(pair_turning(beta_fast)));
    high = std::min(n - 1.0, std::ceil(pair_turning(beta_slow)));
    rope.magnitude *= static_cast<float>(1.0 + 0.1 * std::log(1.0 / double{scale}));
  }
  for (std::int32_t i = 0; i < rotated_dims / 2; ++i) {
    double angle = std::pow(double{base}, -2.0 * i / n);
    if (!factors.empty()) angle /= factors[static_cast<std::size_t>(i)];
    double mix = 0.0;
    if (extrapolation != 0.0f) {
      mix = extrapolation * (1.0 - std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0));
    }
    rope.angles.push_back(angle * (scale * (1.0 - mix) + mix));
  }
  return rope;
}

LayerShape ModelConfig::default_layer_shape() const {
  LayerShape shape;
  shape.query_heads = query_heads;
  shape.kv_heads = kv_heads;
  shape.key_dim = key_dim;
  shape.value_dim = value_dim;
  shape.rope = rope.numbers();
  shape.logit_scale = logit_scale;
  return shape;
}

Result<ModelConfig> read_model_config(const GgufFile& file, Rope::Pairs pairs) {
  ModelConfig config;
  KVSPAN_TRY(config.architecture, file.require_string("general.architecture"));
  KVSPAN_TRY(auto name, file.find_string("general.name"));
  config.name = name.value_or(config.architecture);
  const Keys keys(file, config.architecture);
  KVSPAN_CHECK_OK(keys.required_count("block_count", config.layers));
  KVSPAN_CHECK_OK(keys.required_count("embedding_length", config.hidden));
  KVSPAN_CHECK_OK(keys.required_count("context_length", config.context));
  KVSPAN_CHECK_OK(keys.uniform_count("feed_forward_length", config.feed_forward));
  KVSPAN_CHECK_OK(keys.uniform_count("attention.head_count", config.query_heads));
  config.kv_heads = config.query_heads;
  KVSPAN_CHECK_OK(keys.uniform_count("attention.head_count_kv", config.kv_heads));
  if (config.layers < 1 || config.hidden < 1 || config.query_heads < 1 || config.kv_heads < 1 ||
      config.feed_forward < 1 || config.context < 1 || config.query_heads % config.kv_heads != 0) {
    return fail(ErrorCode::kCorruptData,
                "'{}': impossible shape: {} layers, {} hidden, {} query heads, {} KV heads, "
                "feed-forward {}, context {}",
                file.path(), config.layers, config.hidden, config.query_heads, config.kv_heads,
                config.feed_forward, config.context);
  }
  config.key_dim = config.value_dim = config.hidden / config.query_heads;
  KVSPAN_CHECK_OK(keys.count("attention.key_length", config.key_dim));
  KVSPAN_CHECK_OK(keys.count("attention.value_length", config.value_dim));
  KVSPAN_CHECK_OK(keys.number("attention.layer_norm_rms_epsilon", config.norm_epsilon));
  KVSPAN_CHECK_OK(keys.number("attention.layer_norm_epsilon", config.norm_epsilon));
  KVSPAN_CHECK_OK(keys.number("attention.scale", config.logit_scale));
  if (config.logit_scale == 0.0f) {
    config.logit_scale = 1.0f / std::sqrt(static_cast<float>(config.key_dim));
  }
  KVSPAN_CHECK_OK(keys.count("attention.sliding_window", config.window));
  config.rope.pairs = pairs;
  KVSPAN_CHECK_OK(read_rope(file, keys, config));

  KVSPAN_TRY(const ggml_tensor* embedding,
             file.require_tensor("token_embd.weight", config.hidden, 0));
  config.vocabulary = static_cast<std::int32_t>(embedding->ne[1]);
  return config;
}

Result<std::vector<bool>> read_sliding_layers(const GgufFile& file, const ModelConfig& config,
                                              std::int32_t default_period) {
  const auto layers = static_cast<std::size_t>(config.layers);
  if (config.window == 0) return std::vector<bool>(layers, false);
  const std::string key = config.architecture + ".attention.sliding_window_pattern";
  KVSPAN_TRY(const auto given, file.find_ints(key));
  std::vector<bool> slides(layers);
  if (given && given->size() > 1) {
    if (given->size() < layers) {
      return fail(ErrorCode::kCorruptData, "'{}': key '{}' has {} entries for {} layers",
                  file.path(), key, given->size(), layers);
    }
    for (std::size_t i = 0; i < layers; ++i) slides[i] = (*given)[i] != 0;
    return slides;
  }
  const std::int64_t period = given && !given->empty() ? given->front() : default_period;
  for (std::size_t i = 0; i < layers; ++i) {
    slides[i] = period <= 0 || static_cast<std::int64_t>(i) % period < period - 1;
  }
  return slides;
}

}  // namespace kvspan
