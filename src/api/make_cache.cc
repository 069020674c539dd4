// SPDX-License-Identifier: Apache-2.0
// The factory functions of kvspan/cache.h.
#include <string_view>

#include "api/segment_cache.h"
#include "attention/scratch.h"
#include "base/fail.h"
#include "kvspan/cache.h"

namespace kvspan {
namespace {

Status check(const CacheShape& shape) {
  if (shape.layers.empty()) {
    return fail(ErrorCode::kInvalidArgument, "the cache shape has no layers");
  }
  for (std::size_t i = 0; i < shape.layers.size(); ++i) {
    const LayerShape& layer = shape.layers[i];
    if (layer.kv_heads < 1 || layer.query_heads < 1 || layer.query_heads % layer.kv_heads != 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "layer {}: {} query heads and {} KV heads; allowed: query heads a positive "
                  "multiple of KV heads",
                  i, layer.query_heads, layer.kv_heads);
    }
    if (layer.key_dim < 1 || layer.value_dim < 1) {
      return fail(ErrorCode::kInvalidArgument,
                  "layer {}: key_dim {} and value_dim {}; allowed: 1 or more", i, layer.key_dim,
                  layer.value_dim);
    }
    if (layer.window < 0 || !(layer.soft_cap >= 0.0f)) {
      return fail(ErrorCode::kInvalidArgument,
                  "layer {}: window {} and soft_cap {}; allowed: 0 (none) or more", i, layer.window,
                  layer.soft_cap);
    }
  }
  return {};
}

Result<Element> parse_element(std::string_view recipe) {
  constexpr std::string_view kAllowed = "allowed: full, full:store=f16, full:store=f32";
  const std::size_t colon = recipe.find(':');
  const std::string_view method = recipe.substr(0, colon);
  if (method != "full") {
    return fail(ErrorCode::kInvalidArgument, "unknown method '{}' in recipe '{}'; {}", method,
                recipe, kAllowed);
  }
  if (colon == std::string_view::npos) return Element::kF16;
  const std::string_view option = recipe.substr(colon + 1);
  const std::size_t equals = option.find('=');
  const std::string_view key = option.substr(0, equals);
  if (key != "store" || equals == std::string_view::npos) {
    return fail(ErrorCode::kInvalidArgument, "unknown key '{}' in recipe '{}'; {}", key, recipe,
                kAllowed);
  }
  const std::string_view value = option.substr(equals + 1);
  if (value == "f16") return Element::kF16;
  if (value == "f32") return Element::kF32;
  return fail(ErrorCode::kInvalidArgument, "store={} in recipe '{}'; {}", value, recipe, kAllowed);
}

}  // namespace

Result<std::unique_ptr<KvCache>> make_cache(const CacheShape& shape, std::string_view recipe) {
  KVSPAN_CHECK_OK(check(shape));
  KVSPAN_TRY(const Element element, parse_element(recipe));
  return std::unique_ptr<KvCache>(std::make_unique<SegmentCache>(shape, element));
}

std::size_t full_rank_f16_bytes(const CacheShape& shape, std::int32_t tokens) noexcept {
  std::size_t per_token = 0;
  for (const LayerShape& layer : shape.layers) {
    per_token += static_cast<std::size_t>(layer.kv_heads) *
                 static_cast<std::size_t>(layer.key_dim + layer.value_dim) * 2;
  }
  return per_token * static_cast<std::size_t>(tokens);
}

std::unique_ptr<AttentionScratch, void (*)(AttentionScratch*)> make_attention_scratch() {
  return {new AttentionScratch, [](AttentionScratch* scratch) { delete scratch; }};
}

}  // namespace kvspan
