// SPDX-License-Identifier: Apache-2.0
#include "api/certify_head.h"

#include <algorithm>
#include <vector>

#include "api/wrapped_cache.h"
#include "cache/layer_part.h"
#include "method/method_cache.h"
#include "recipe/recipe.h"

namespace kvspan {
namespace {

std::optional<Certificate> certify_in_group(const LayerShape& layer, const Group& group,
                                            std::int32_t kv_head, const Queries& query) {
  const GroupOptions& options = group.options();
  const LayerShape part = layer_part(layer, options.first_head, options.heads);
  const auto per_head = static_cast<std::size_t>(layer.query_heads / layer.kv_heads);
  const auto first = static_cast<std::size_t>(options.first_head) * per_head;
  Queries of = query;
  of.rows.data = query.rows.row(0, first);
  of.rows.shape[1] = static_cast<std::size_t>(part.query_heads);
  std::vector<const TokenStore*> stores;
  group.each_store([&](const TokenStore& store) { stores.push_back(&store); });
  std::vector<Certificate> heads(of.rows.shape[1]);
  const std::int32_t in_group = kv_head - options.first_head;
  if (!certify(part, stores, of, in_group, {heads.data(), {1, heads.size()}})) return std::nullopt;
  Certificate most;
  for (const Certificate& one : heads) {
    most.logits = std::max(most.logits, one.logits);
    most.weights = std::max(most.weights, one.weights);
    most.values = std::max(most.values, one.values);
    most.output = std::max(most.output, one.output);
  }
  return most;
}

}  // namespace

bool has_certificates(std::string_view recipe) {
  const auto parsed = Recipe::parse(recipe);
  if (!parsed) return false;
  const auto& parts = parsed->parts();
  const bool reads_all = std::all_of(parts.begin(), parts.end(), [](const RecipePart& part) {
    return part.method().tokens == TokenUse::kAll;
  });
  return reads_all && std::any_of(parts.begin(), parts.end(), [](const RecipePart& part) {
    return part.declares("certify") && part.on("certify");
  });
}

std::optional<Certificate> certify_head(const KvCache& cache, int layer, std::int32_t kv_head,
                                        const Queries& query) {
  if (const auto* outer = dynamic_cast<const WrappedCache*>(&cache)) {
    return certify_head(outer->wrapped(), layer, kv_head, query);
  }
  const auto* methods = dynamic_cast<const MethodCache*>(&cache);
  if (methods == nullptr || !has_certificates(cache.recipe())) return std::nullopt;
  const LayerShape& shape = cache.shape().layers[static_cast<std::size_t>(layer)];
  for (std::size_t g = 0; g < methods->groups(layer); ++g) {
    const Group& group = methods->group(layer, g);
    const std::int32_t first = group.options().first_head;
    if (kv_head < first || kv_head >= first + group.options().heads) continue;
    return certify_in_group(shape, group, kv_head, query);
  }
  return std::nullopt;
}

}  // namespace kvspan
