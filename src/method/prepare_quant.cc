// SPDX-License-Identifier: Apache-2.0
// full and quant: nothing learned. quant codes rows by the identity or by a Hadamard rotation, the
// same for all layers whose heads have the same size.
#include <map>
#include <utility>

#include "base/fail.h"
#include "codec/hadamard.h"
#include "method/fixed_policy.h"
#include "method/prepare_parts.h"

namespace kvspan::detail {
namespace {

constexpr std::int32_t kUnit = 64;

// [d, d] with orthonormal rows.
Matrix rotation(std::int32_t dim, bool hadamard) {
  const auto d = static_cast<std::size_t>(dim);
  Matrix rows(d, d);
  for (std::size_t i = 0; i < d; ++i) {
    rows(i, i) = 1.0f;
    if (hadamard) hadamard_rotate(rows.row(i), d);
  }
  return rows;
}

// Scales in f16: llama.cpp's grouping along the head, with its arithmetic where it has the type (8
// and 4 bits in groups of 32), else symmetric; one per head or for all of what is coded together;
// KIVI's are asymmetric, per channel for keys and per token for values.
Result<CodecSpec> quant_codec(const RecipePart& method, bool keys) {
  const std::int64_t bits =
      method.has("bits") ? method.count("bits") : method.count(keys ? "kbits" : "vbits");
  const std::string_view layout = method.word("layout");
  std::string text = fmt::format("int{}:", bits);
  if (layout == "group") {
    if (method.count("group") == 32 && bits == 8) return q8_0_spec();
    if (method.count("group") == 32 && bits == 4) return q4_0_spec();
    text += fmt::format("group={}", method.count("group"));
  } else if (layout == "kivi") {
    text += fmt::format("{}={},asym", keys ? "column" : "group", method.count("group"));
  } else {
    text += "tensor";
  }
  return parse_codec_spec(text);
}

class CodeBook {
 public:
  CodeBook(const RecipePart& method, std::shared_ptr<Ledger> shared)
      : method_(method), shared_(std::move(shared)) {}

  Result<SidePlan> side(std::int32_t heads, std::int32_t dim, bool keys) {
    SidePlan plan;
    plan.style.domain = keys ? Domain::kPostRopeKey : Domain::kValue;
    plan.style.heads = heads;
    plan.style.dim = dim;
    const std::int32_t width = heads * dim;
    plan.rank.directions = width;
    KVSPAN_TRY(plan.style.codec, quant_codec(method_, keys));
    std::shared_ptr<const Code>& code = codes_[{width, keys}];
    if (!code) {
      const Matrix basis = rotation(width, method_.word("rotate") == "hadamard");
      KVSPAN_TRY(code,
                 orthonormal_code(plan.style, basis.view(), {}, shared_, MemoryKind::kShared));
    }
    plan.start = code;
    return plan;
  }

 private:
  const RecipePart& method_;
  std::shared_ptr<Ledger> shared_;
  std::map<std::pair<std::int32_t, bool>, std::shared_ptr<const Code>> codes_;
};

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
  CodeBook book(method, in.shared);
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
