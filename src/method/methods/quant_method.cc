// SPDX-License-Identifier: Apache-2.0
// full and quant, nothing learned: their rows and what makes them. quant codes rows by the identity
// or by a Hadamard rotation, the same for all layers whose heads have the same size.
#include <utility>

#include "base/fail.h"
#include "method/methods/quant_codes.h"
#include "method/prepare_parts.h"
#include "recipe/common_keys.h"

namespace kvspan {
namespace {

using namespace detail;

constexpr std::array<KeyDeclaration, 1> kFullKeys{kFullStore};

constexpr std::array<KeyDeclaration, 9> kQuantKeys{
    choice("bits", "4", "8|4|3|2", "bits of a number"),
    choice("kbits", "", "8|4|3|2", "bits of keys"),
    choice("vbits", "", "8|4|3|2", "bits of values"),
    choice("group", "32", "16|32|64|128|256",
           "numbers that share a scale: along the head (layout=group), or tokens of a channel for "
           "keys and along the head for values (layout=kivi)"),
    word("rotate", "hadamard", "hadamard|none", "Hadamard rotation before quantizing"),
    word("layout", "group", "group|head|tensor|kivi",
         "one scale per token and group of channels, per head, for all, or KIVI's: keys per "
         "channel, values per token"),
    sink_key("32"),
    recent_key("128"),
    kCertify};
constexpr std::array<KeyRule, 6> kQuantRules{{
    {KeyRule::Kind::kExcludes, "kbits", "bits", {}, {}, "bits sets both"},
    {KeyRule::Kind::kExcludes, "vbits", "bits", {}, {}, "bits sets both"},
    {KeyRule::Kind::kTogether, "kbits", "vbits", {}, {}, "bits sets both at once"},
    {KeyRule::Kind::kTogether, "vbits", "kbits", {}, {}, "bits sets both at once"},
    {KeyRule::Kind::kOnlyWith,
     "group",
     "layout",
     "group|kivi",
     {},
     "one scale for a head or for all leaves nothing to group"},
    {KeyRule::Kind::kImplies, "rotate", "layout", "kivi", "none",
     "KIVI's scales follow the channels, which a rotation would mix"},
}};

constexpr std::int32_t kQuantUnit = 64;

std::string why_units_stay(const RecipePart& part) {
  if (part.word("layout") == "group") return {};
  return fmt::format(
      "with layout={} one scale covers several tokens; layout=group has one for each",
      part.word("layout"));
}

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
      const bool kivi = method.word("layout") == "kivi";
      const std::int32_t unit = kivi ? std::max(kQuantUnit, whole(method, "group")) : kQuantUnit;
      KVSPAN_TRY(SidePlan keys, book.side(heads, shape.key_dim, true));
      KVSPAN_TRY(SidePlan values, book.side(heads, shape.value_dim, false));
      layer.groups.push_back(
          fixed_group(method, {first, heads}, unit, std::move(keys), std::move(values)));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace

MethodDeclaration full_method() {
  return {
      .name = "full",
      .kind = MethodKind::kBaseline,
      .summary = "every row as it came",
      .keys = kFullKeys,
      .example = "full:store=f32",
      .make = prepare_full,
  };
}

MethodDeclaration quant_method() {
  return {
      .name = "quant",
      .kind = MethodKind::kBaseline,
      .summary = "plain quantization, nothing learned",
      .source = "llama.cpp's KV cache types; KIVI (Liu et al. 2024)",
      .keys = kQuantKeys,
      .rules = kQuantRules,
      .example = "quant:bits=4",
      .size_keys = "bits",
      .make = prepare_quant,
      .why_tokens_stay = why_units_stay,
  };
}

}  // namespace kvspan
