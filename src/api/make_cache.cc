// SPDX-License-Identifier: Apache-2.0
// The factory functions of kvspan/cache.h.
#include <algorithm>
#include <cmath>
#include <new>
#include <string_view>
#include <utility>

#include "api/prepared_of.h"
#include "attention/scratch.h"
#include "base/fail.h"
#include "cache/rope.h"
#include "kvspan/cache.h"
#include "method/method_cache.h"
#include "method/prepared.h"
#include "recipe/recipe.h"

namespace kvspan {
namespace {

// One finite number for each query head, or none.
Status check_per_head(const char* what, std::size_t layer, std::int32_t heads,
                      const std::vector<float>& numbers) {
  if (!numbers.empty() && numbers.size() != static_cast<std::size_t>(heads)) {
    return fail(ErrorCode::kInvalidArgument,
                "layer {}: {} numbers of {}; allowed: none, or one for each of {} query heads",
                layer, numbers.size(), what, heads);
  }
  for (std::size_t h = 0; h < numbers.size(); ++h) {
    if (std::isfinite(numbers[h])) continue;
    return fail(ErrorCode::kInvalidArgument,
                "layer {}: {} of query head {} is {}; allowed: finite numbers", layer, what, h,
                numbers[h]);
  }
  return {};
}

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
    if (layer.window < 0 || layer.chunk < 0 || !(layer.soft_cap >= 0.0f)) {
      return fail(ErrorCode::kInvalidArgument,
                  "layer {}: window {}, chunk {} and soft_cap {}; allowed: 0 (none) or more", i,
                  layer.window, layer.chunk, layer.soft_cap);
    }
    KVSPAN_CHECK_OK(check_per_head("alibi", i, layer.query_heads, layer.alibi));
    KVSPAN_CHECK_OK(check_per_head("sinks", i, layer.query_heads, layer.sinks));
    if (!std::isfinite(layer.logit_scale) || !std::isfinite(layer.soft_cap)) {
      return fail(ErrorCode::kInvalidArgument,
                  "layer {}: logit_scale {} and soft_cap {}; allowed: finite numbers", i,
                  layer.logit_scale, layer.soft_cap);
    }
    if (Status fits = check_rope(layer.rope, layer.key_dim); !fits) {
      return fail(ErrorCode::kInvalidArgument, "layer {}: {}", i, fits.error().message);
    }
  }
  return {};
}

}  // namespace

CacheFactory::CacheFactory(std::shared_ptr<const Prepared> prepared)
    : prepared_(std::move(prepared)) {}

Result<CacheFactory> CacheFactory::create(const CacheShape& shape, std::string_view recipe,
                                          const Calibration* calibration,
                                          const DesignProgress& progress) {
  try {
    KVSPAN_CHECK_OK(check(shape));
    KVSPAN_TRY(const Recipe parsed, Recipe::parse(recipe));
    KVSPAN_TRY(std::shared_ptr<const Prepared> prepared,
               prepare(shape, parsed, calibration, progress));
    return CacheFactory(std::move(prepared));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory to prepare {}", recipe);
  }
}

Result<CacheFactory> CacheFactory::load_codes(const CacheShape& shape, std::string_view recipe,
                                              std::span<const std::byte> codes) {
  try {
    KVSPAN_CHECK_OK(check(shape));
    KVSPAN_TRY(const Recipe parsed, Recipe::parse(recipe));
    KVSPAN_TRY(std::shared_ptr<const Prepared> prepared, prepare_saved(shape, parsed, codes));
    return CacheFactory(std::move(prepared));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory for codes of {} bytes", codes.size());
  }
}

Result<std::vector<std::byte>> CacheFactory::save_codes() const {
  try {
    return save_designs(*prepared_);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory for the bytes of codes");
  }
}

std::uint64_t CacheFactory::calibration_checksum() const noexcept {
  return prepared_->calibration_checksum;
}

CacheFactory CacheFactory::kept_in(std::shared_ptr<CacheHome> home) const {
  CacheFactory moved = *this;
  moved.home_ = std::move(home);
  return moved;
}

const std::shared_ptr<const Prepared>& prepared_of(const CacheFactory& factory) noexcept {
  return factory.prepared_;
}

std::unique_ptr<KvCache> CacheFactory::make() const {
  if (home_) return home_->make();
  return std::make_unique<MethodCache>(prepared_);
}

Result<std::unique_ptr<KvCache>> CacheFactory::load(std::span<const std::byte> bytes) const {
  KVSPAN_TRY(std::unique_ptr<KvCache> cache, MethodCache::load(prepared_, bytes));
  return brought_home(std::move(cache));
}

Result<std::unique_ptr<KvCache>> CacheFactory::brought_home(std::unique_ptr<KvCache> cache) const {
  if (!home_ || dynamic_cast<const MethodCache*>(cache.get()) == nullptr) return cache;
  return home_->take(*cache);
}

const std::string& CacheFactory::recipe() const noexcept {
  return prepared_->recipe;
}

std::size_t CacheFactory::shared_bytes() const noexcept {
  return home_ ? home_->shared_bytes() : prepared_->shared->bytes(MemoryKind::kShared);
}

Result<bool> needs_calibration(std::string_view recipe) {
  try {
    KVSPAN_TRY(const Recipe parsed, Recipe::parse(recipe));
    return needs_calibration(parsed);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory to read the recipe");
  }
}

Result<std::unique_ptr<KvCache>> make_cache(const CacheShape& shape, std::string_view recipe) {
  KVSPAN_TRY(const CacheFactory factory, CacheFactory::create(shape, recipe));
  try {
    return factory.make();
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfBudget, "no memory for a cache of {}", factory.recipe());
  }
}

std::unique_ptr<AttentionScratch, void (*)(AttentionScratch*)> make_attention_scratch() {
  return {new AttentionScratch, [](AttentionScratch* scratch) { delete scratch; }};
}

std::size_t attention_scratch_bytes(const AttentionScratch& scratch) noexcept {
  return scratch.bytes();
}

std::size_t most_attention_scratch_bytes(const CacheShape& shape, int threads) noexcept {
  std::size_t work = 0;
  for (const LayerShape& layer : shape.layers) {
    work = std::max(work, most_scratch_bytes(layer, threads));
  }
  return work;
}

}  // namespace kvspan
