// SPDX-License-Identifier: Apache-2.0
// oscar: rotations from calibration, then 2 bits (Zhou et al. 2026, arXiv 2605.17757). With U the
// directions of what attention makes of a row (queries for keys, values for values), strongest
// first, H the Hadamard matrix and P the order of reversed bits, a row is stored as P' H U' x, so
// that every group of neighbours gets its share of strong directions; a scale and an offset for
// each token and group.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/fail.h"
#include "codec/hadamard.h"
#include "linalg/symmetric_eigen.h"
#include "method/methods/prepare_subspace.h"
#include "method/prepare_parts.h"
#include "recipe/common_keys.h"
#include "recipe/recipe.h"

namespace kvspan {
namespace {

using namespace detail;

constexpr std::array<KeyDeclaration, 5> kOscarKeys{
    choice("bits", "2", "4|3|2", "bits of a number"),
    choice("group", "64", "16|32|64|128|256", "numbers of a token that share scale and offset"),
    sink_key("64"), recent_key("256"), kCertify};
constexpr std::int32_t kOscarUnit = 64;

std::size_t reversed(std::size_t i, std::size_t size) {
  std::size_t out = 0;
  for (std::size_t bit = 1; bit < size; bit *= 2, i /= 2) out = 2 * out + i % 2;
  return out;
}

// Rows of P' H U', [d, d]. A direction's sign is free, and decides what is mixed with what: its
// largest number is made positive.
Result<Matrix> rotation_of(const MatrixD& covariance) {
  const std::size_t d = covariance.rows(), block = hadamard_block(d);
  KVSPAN_TRY(const SymmetricEigen eigen, symmetric_eigen(covariance.view()));
  Matrix mixed(d, d);  // column k: the mix of direction k's number, H e_k
  Matrix rows(d, d);
  for (std::size_t k = 0; k < d; ++k) {
    mixed(k, k) = 1.0f;
    hadamard_rotate(mixed.row(k), d);
    const double* u = eigen.vectors.row(k);
    const double largest =
        *std::max_element(u, u + d, [](double a, double b) { return std::abs(a) < std::abs(b); });
    for (std::size_t p = 0; p < d; ++p) {
      const std::size_t from = p / block * block + reversed(p % block, block);
      for (std::size_t j = 0; j < d; ++j) {
        rows(p, j) += mixed(k, from) * static_cast<float>(largest < 0.0 ? -u[j] : u[j]);
      }
    }
  }
  return rows;
}

Result<SidePlan> oscar_side(const PrepareInput& in, std::size_t layer, std::int32_t head,
                            bool keys) {
  const LayerShape& shape = in.shape.layers[layer];
  SidePlan plan;
  plan.style.domain = keys ? Domain::kPostRopeKey : Domain::kValue;
  plan.style.dim = keys ? shape.key_dim : shape.value_dim;
  plan.rank.directions = plan.style.dim;
  KVSPAN_TRY(plan.style.codec,
             parse_codec_spec(fmt::format("int{}:group={},asym", in.method.count("bits"),
                                          in.method.count("group"))));
  const HeadRange heads{head, 1};
  const auto design = [&]() -> Result<std::shared_ptr<const Code>> {
    const LayerCalibration& learnt = in.calibration->layers[layer];
    KVSPAN_TRY(const Matrix rotation,
               rotation_of(keys ? by_heads(shape, learnt.query_moment, plan.style.domain, heads)
                                : moment_of(shape, learnt, plan.style.domain, heads, 0).second));
    return orthonormal_code(plan.style, rotation.view(), {}, in.shared, MemoryKind::kShared);
  };
  KVSPAN_TRY(plan.start, in.designs.code(1, plan.style.dim, in.shared, design));
  return plan;
}

PreparedLayers make_oscar(const PrepareInput& given) {
  Calibration whole_calibration;
  KVSPAN_TRY(const PrepareInput in, with_whole_calibration(given, whole_calibration));
  std::vector<PreparedLayer> layers(in.shape.layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    for (std::int32_t h = 0; h < in.shape.layers[l].kv_heads; ++h) {
      KVSPAN_TRY(SidePlan keys, oscar_side(in, l, h, true));
      KVSPAN_TRY(SidePlan values, oscar_side(in, l, h, false));
      layers[l].groups.push_back(
          fixed_group(in.method, {h, 1}, kOscarUnit, std::move(keys), std::move(values)));
    }
  }
  return layers;
}

}  // namespace

MethodDeclaration oscar_method() {
  return {
      .name = "oscar",
      .kind = MethodKind::kBaseline,
      .summary = "rotations by what attention sees, from a calibration, then few bits in groups",
      .source = "OSCAR (Zhou et al. 2026)",
      .keys = kOscarKeys,
      .example = "oscar:bits=2",
      .size_keys = "bits",
      .make = make_oscar,
      .needs_calibration = always,
  };
}

}  // namespace kvspan
