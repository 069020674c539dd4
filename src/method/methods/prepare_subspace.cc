// SPDX-License-Identifier: Apache-2.0
#include "method/methods/prepare_subspace.h"

#include <utility>

#include "base/fail.h"

namespace kvspan::detail {

Result<PrepareInput> with_whole_calibration(const PrepareInput& in, Calibration& whole) {
  if (in.calibration == nullptr || !in.calibration->read_layer) return in;
  KVSPAN_CHECK_OK(check_calibration(in.shape, *in.calibration));
  whole = *in.calibration;
  whole.read_layer = nullptr;
  // They would take as much memory again, and nothing here looks at them.
  whole.neighbours = 0;
  for (std::size_t i = 0; i < whole.layers.size(); ++i) {
    KVSPAN_TRY(const auto layer, layer_of(in.shape, *in.calibration, i));
    whole.layers[i] = *layer;
    whole.layers[i].cross_moments.clear();
  }
  return PrepareInput{in.shape, in.method, &whole, in.shared, in.designs};
}

PreparedLayers prepare_subspace(const PrepareInput& in, const SubspaceMethod& method) {
  const RecipePart& m = in.method;
  KVSPAN_TRY(const RankTable ranks, rank_table(in));
  std::vector<PreparedLayer> layers;
  for (std::size_t i = 0; i < in.shape.layers.size(); ++i) {
    const LayerShape& shape = in.shape.layers[i];
    PreparedLayer layer;
    layer.reconstruct = method.reconstructs;
    if (method.check != nullptr) KVSPAN_CHECK_OK(method.check(m, shape, ranks, i));
    const std::vector<HeadRange> groups = head_groups(shape, m);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      auto plan = std::make_shared<CodingPlan>();
      plan->first_head = groups[g].first;
      plan->heads = groups[g].count;
      plan->recent = whole(m, "recent");
      plan->unit = method.unit;
      plan->weigh_values = method.weighs_values;
      KVSPAN_TRY(plan->keys, calibrated_side(in, method, i, groups[g], true, ranks.keys[i][g]));
      KVSPAN_TRY(plan->values,
                 calibrated_side(in, method, i, groups[g], false, ranks.values[i][g]));
      PreparedGroup group;
      group.options.first_head = groups[g].first;
      group.options.heads = groups[g].count;
      group.options.ends = m.word("store") == "f32" ? Element::kF32 : Element::kF16;
      group.options.sink = whole(m, "sink");
      group.options.residuals = m.on("certify");
      for (const std::optional<SidePlan>* side : {&plan->keys, &plan->values}) {
        if (*side && (*side)->start) group.codes.push_back((*side)->start);
      }
      KVSPAN_CHECK_OK(method.set_policy(i, std::move(plan), group));
      layer.groups.push_back(std::move(group));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace kvspan::detail
