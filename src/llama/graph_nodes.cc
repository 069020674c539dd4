// SPDX-License-Identifier: Apache-2.0
#include "llama/graph_nodes.h"

#include <ggml-backend.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvspan {
namespace {

// ggml_rope_ext's arguments, by their places in op_params.
enum RopeParam {
  kRotatedDims = 1,
  kMode = 2,
  kOriginalContext = 4,
  kBase = 5,
  kScale = 6,
  kExtrapolation = 7,
  kMagnitude = 8,
  kBetaFast = 9,
  kBetaSlow = 10,
};

}  // namespace

const ggml_tensor* memory_of(const ggml_tensor* tensor) {
  while (tensor->view_src != nullptr) tensor = tensor->view_src;
  return tensor;
}

bool is_view(const ggml_tensor* node) {
  switch (node->op) {
    case GGML_OP_NONE:
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
      return true;
    default:
      return false;
  }
}

float float_param(const ggml_tensor* node, int index) {
  float value;
  std::memcpy(&value, node->op_params + index, sizeof value);
  return value;
}

std::vector<float> read_floats(const ggml_tensor* tensor) {
  if (tensor->type != GGML_TYPE_F32 || !ggml_is_contiguous(tensor)) return {};
  std::vector<float> numbers(static_cast<std::size_t>(ggml_nelements(tensor)));
  ggml_backend_tensor_get(tensor, numbers.data(), 0, ggml_nbytes(tensor));
  return numbers;
}

const ggml_tensor* rope_behind(const ggml_tensor* rows) {
  for (const ggml_tensor* t = rows; t != nullptr; t = t->src[0]) {
    if (t->op == GGML_OP_ROPE) return t;
    // A norm without gain and a common factor commute with turning.
    const bool commutes = t->op == GGML_OP_CONT || t->op == GGML_OP_CPY || t->op == GGML_OP_SCALE ||
                          t->op == GGML_OP_RMS_NORM;
    if (!commutes && !(is_view(t) && t->op != GGML_OP_NONE)) return nullptr;
    // A view of a part would turn other coordinates than the first.
    if (t->op == GGML_OP_VIEW && ggml_nelements(t) != ggml_nelements(t->src[0])) return nullptr;
  }
  return nullptr;
}

std::int32_t original_context_of(const ggml_tensor* rope_node) {
  return rope_node->op_params[kOriginalContext];
}

Rope rope_of(const ggml_tensor* rope_node) {
  const int mode = rope_node->op_params[kMode];
  Rope rope;
  const bool halves = (mode & (GGML_ROPE_TYPE_NEOX | GGML_ROPE_TYPE_MROPE)) != 0;
  rope.pairs = halves ? Rope::Pairs::kHalves : Rope::Pairs::kNeighbours;
  rope.rotated_dims = rope_node->op_params[kRotatedDims];
  rope.magnitude = float_param(rope_node, kMagnitude);
  const double dims = rope.rotated_dims, base = float_param(rope_node, kBase);
  const double scale = float_param(rope_node, kScale);
  const double extrapolation = float_param(rope_node, kExtrapolation);
  std::vector<float> factors;  // Llama 3, Phi 3: angle i is divided by factors[i]
  if (rope_node->src[2] != nullptr) factors = read_floats(rope_node->src[2]);

  // YaRN (Peng et al. 2023): pairs that turn often within the original context keep their angle,
  // those that turn seldom are interpolated, with a linear ramp between the pairs found here.
  const auto pair_turning = [&](double turns) {
    const double context = rope_node->op_params[kOriginalContext];
    return dims * std::log(context / (turns * 2.0 * M_PI)) / (2.0 * std::log(base));
  };
  double low = 0.0, high = 0.0;
  if (extrapolation != 0.0) {
    low = std::max(0.0, std::floor(pair_turning(float_param(rope_node, kBetaFast))));
    high = std::min(dims - 1.0, std::ceil(pair_turning(float_param(rope_node, kBetaSlow))));
    rope.magnitude *= static_cast<float>(1.0 + 0.1 * std::log(1.0 / scale));
  }
  for (std::int32_t i = 0; i < rope.rotated_dims / 2; ++i) {
    double angle = std::pow(base, -2.0 * i / dims);
    if (!factors.empty()) angle /= factors[static_cast<std::size_t>(i)];
    double mix = 0.0;
    if (extrapolation != 0.0) {
      mix = extrapolation * (1.0 - std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0));
    }
    rope.angles.push_back(angle * (scale * (1.0 - mix) + mix));
  }
  return rope;
}

}  // namespace kvspan
