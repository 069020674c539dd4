// SPDX-License-Identifier: Apache-2.0
// turbo: TurboQuant's quantizer for mean squared error (Zandieh et al. 2025, arXiv 2504.19874):
// rows are rotated, so that their numbers are nearly normal, and each gets the nearest of the
// levels that are best for a normal number; a row's length is kept. Nothing is learned.
#include <map>
#include <utility>

#include "base/fail.h"
#include "codec/hadamard.h"
#include "method/prepare_parts.h"
#include "recipe/common_keys.h"
#include "recipe/recipe.h"

namespace kvspan {
namespace {

using namespace detail;

constexpr std::array<KeyDeclaration, 4> kTurboKeys{choice("bits", "4", "4|3|2", "bits of a number"),
                                                   sink_key("32"), recent_key("128"), kCertify};
constexpr std::int32_t kTurboUnit = 64;

// One code for all heads of a size: Sylvester's rotation, levels for normal numbers.
Result<SidePlan> turbo_side(std::int32_t dim, bool keys, const PrepareInput& in,
                            std::shared_ptr<const Code>& code) {
  SidePlan plan;
  plan.style.domain = keys ? Domain::kPostRopeKey : Domain::kValue;
  plan.style.dim = dim;
  plan.rank.directions = dim;
  KVSPAN_TRY(plan.style.codec,
             parse_codec_spec(fmt::format("int{}:normal", in.method.count("bits"))));
  if (!code) {
    Matrix basis(static_cast<std::size_t>(dim), static_cast<std::size_t>(dim));
    for (std::size_t i = 0; i < basis.rows(); ++i) {
      basis(i, i) = 1.0f;
      hadamard_rotate(basis.row(i), basis.cols());
    }
    KVSPAN_TRY(code,
               orthonormal_code(plan.style, basis.view(), {}, in.shared, MemoryKind::kShared));
  }
  plan.start = code;
  return plan;
}

PreparedLayers make_turbo(const PrepareInput& in) {
  std::map<std::pair<std::int32_t, bool>, std::shared_ptr<const Code>> codes;
  std::vector<PreparedLayer> layers;
  for (const LayerShape& shape : in.shape.layers) {
    PreparedLayer layer;
    for (std::int32_t h = 0; h < shape.kv_heads; ++h) {
      KVSPAN_TRY(SidePlan keys, turbo_side(shape.key_dim, true, in, codes[{shape.key_dim, true}]));
      KVSPAN_TRY(SidePlan values,
                 turbo_side(shape.value_dim, false, in, codes[{shape.value_dim, false}]));
      layer.groups.push_back(
          fixed_group(in.method, {h, 1}, kTurboUnit, std::move(keys), std::move(values)));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace

MethodDeclaration turbo_method() {
  return {
      .name = "turbo",
      .kind = MethodKind::kBaseline,
      .summary = "rotated rows, each number at the nearest of the levels best for normal ones",
      .source = "TurboQuant, the form for mean squared error (Zandieh et al. 2025)",
      .keys = kTurboKeys,
      .example = "turbo:bits=3",
      .size_keys = "bits",
      .make = make_turbo,
  };
}

}  // namespace kvspan
