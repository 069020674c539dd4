// SPDX-License-Identifier: Apache-2.0
// full and quant: nothing learned. quant codes rows by the identity or by a Hadamard rotation, the
// same for all layers whose heads have the same size.
#include <utility>

#include "base/fail.h"
#include "method/fixed_policy.h"
#include "method/prepare_parts.h"
#include "method/quant_codes.h"

namespace kvspan::detail {
namespace {

constexpr std::int32_t kUnit = 64;

}  // namespace

PreparedLayers prepare_full(const PrepareInput& in) {
  std::vector<PreparedLayer> layers;
  for (const LayerShape& shape : in.shape.layers) {
    GroupOptions options;
    options.heads = shape.kv_heads;
    options.ends = in.method.word("store") == "f32" ? Element::kF32 : Element::kF16;
    options.moves = false;
    PreparedLayer layer;
    layer.groups.emplace_back().options = options;
    layers.push_back(std::move(layer));
  }
  return layers;
}

PreparedLayers prepare_quant(const PrepareInput& in) {
  const RecipePart& method = in.method;
  QuantCodes book(method, in.shared);
  std::vector<PreparedLayer> layers;
  for (const LayerShape& shape : in.shape.layers) {
    PreparedLayer layer;
    // One scale for all heads needs them in one group; otherwise each head is one.
    const bool together = method.word("layout") == "tensor";
    const std::int32_t heads = together ? shape.kv_heads : 1;
    for (std::int32_t first = 0; first < shape.kv_heads; first += heads) {
      auto plan = std::make_shared<CodingPlan>();
      plan->first_head = first;
      plan->heads = heads;
      plan->recent = static_cast<std::int32_t>(method.count("recent"));
      plan->unit = kUnit;
      if (method.word("layout") == "kivi") {
        plan->unit = std::max(kUnit, static_cast<std::int32_t>(method.count("group")));
      }
      KVSPAN_TRY(plan->keys, book.side(heads, shape.key_dim, true));
      KVSPAN_TRY(plan->values, book.side(heads, shape.value_dim, false));
      PreparedGroup group;
      group.options.first_head = first;
      group.options.heads = heads;
      group.options.sink = static_cast<std::int32_t>(method.count("sink"));
      group.options.residuals = method.on("certify");
      group.codes = {plan->keys->start, plan->values->start};
      group.make_policy = [plan](const std::shared_ptr<Ledger>&) {
        return std::make_unique<FixedPolicy>(plan);
      };
      layer.groups.push_back(std::move(group));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace kvspan::detail
