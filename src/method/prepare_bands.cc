// SPDX-License-Identifier: Apache-2.0
// bands: codes of all layers designed together, tokens in tiles.
#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "method/bands_design.h"
#include "method/bands_policy.h"
#include "method/prepare_parts.h"
#include "method/quant_codes.h"

namespace kvspan::detail {
namespace {

// Values earn more bits than keys where they are coded apart and nothing was measured.
constexpr double kHalfGap = 0.35;

BandsOptions options_of(const RecipePart& m, bool weighed) {
  BandsOptions options;
  options.joint = m.word("share") == "kv";
  options.levels = m.levels("levels");
  options.anchor = m.word("rope") == "anchor" ? static_cast<std::int32_t>(m.count("anchor")) : 0;
  options.before_rope = m.word("rope") == "pre";
  options.gain = m.word("gain") == "token";
  options.query_metric = m.word("metric") == "query";
  if (m.has("kbits")) {
    options.key_bits = m.number("kbits");
    options.value_bits = m.number("vbits");
  } else {
    options.bits = m.number("bits");
    if (weighed) return options;
    const double gap = kHalfGap * std::min(1.0, options.bits / 2.0);
    options.key_bits = options.bits - gap;
    options.value_bits = options.bits + gap;
  }
  return options;
}

Status refuse_what_is_not_there(const RecipePart& m) {
  if (m.word("rope") == "post" && m.word("share") == "kv") {
    return fail(ErrorCode::kInvalidArgument,
                "bands: rope=post has no joint moments of keys and values; allowed with it: "
                "share=layer, group or head");
  }
  if (m.word("calib") == "online") {
    return fail(ErrorCode::kInvalidArgument,
                "bands: calib=online is not available; allowed: file (kvspan calibrate makes it)");
  }
  if (m.word("ends") == "int8" && m.on("certify")) {
    return fail(
        ErrorCode::kInvalidArgument,
        "bands: certify=on bounds errors against rows as they came, and with ends=int8 rows "
        "are rounded before they are coded; allowed with it: ends=f16");
  }
  return {};
}

// How ends are held at 8 bits, llama.cpp's way.
class Int8Ends {
 public:
  explicit Int8Ends(std::shared_ptr<Ledger> shared)
      : quant_(Recipe::parse("quant:bits=8,rotate=none").value()),
        codes_(quant_.method(), std::move(shared)) {}

  Result<std::shared_ptr<const CodingPlan>> plan(const LayerShape& layer, HeadRange heads) {
    auto plan = std::make_shared<CodingPlan>();
    plan->first_head = heads.first;
    plan->heads = heads.count;
    KVSPAN_TRY(plan->keys, codes_.side(heads.count, layer.key_dim, true));
    KVSPAN_TRY(plan->values, codes_.side(heads.count, layer.value_dim, false));
    return std::shared_ptr<const CodingPlan>(std::move(plan));
  }

 private:
  Recipe quant_;
  QuantCodes codes_;
};

}  // namespace

PreparedLayers prepare_bands(const PrepareInput& in) {
  const RecipePart& m = in.method;
  KVSPAN_CHECK_OK(refuse_what_is_not_there(m));
  const BandsOptions options = options_of(m, has_layer_weights(*in.calibration));
  std::vector<std::vector<HeadRange>> groups;
  for (const LayerShape& layer : in.shape.layers) {
    if (m.word("share") == "kv") {
      groups.push_back({{0, layer.kv_heads}});
    } else {
      groups.push_back(head_groups(layer, m));
    }
  }
  KVSPAN_TRY(const auto designed,
             design_bands(in.shape, *in.calibration, groups, options, in.shared));
  Int8Ends int8_ends(in.shared);
  std::vector<PreparedLayer> layers;
  for (std::size_t l = 0; l < designed.size(); ++l) {
    PreparedLayer layer;
    for (const GroupBands& code : designed[l]) {
      PreparedGroup group;
      group.options.first_head = code.heads.first;
      group.options.heads = code.heads.count;
      // Tiles begin at multiples of 16.
      const auto tile = static_cast<std::int64_t>(kBandTokens);
      const auto sink = static_cast<std::int32_t>((m.count("sink") + tile - 1) / tile * tile);
      BandsPolicyOptions policy;
      policy.recent = static_cast<std::int32_t>(m.count("recent"));
      policy.escape = m.number("escape");
      if (m.word("ends") == "int8") {
        policy.sink = sink;
        KVSPAN_TRY(policy.ends, int8_ends.plan(in.shape.layers[l], code.heads));
        group.codes = {policy.ends->keys->start, policy.ends->values->start};
      } else {
        group.options.sink = sink;
      }
      group.make_policy = [policy](const auto&) { return std::make_unique<BandsPolicy>(policy); };
      group.options.residuals = m.on("certify");
      group.bands = [code, residuals = m.on("certify")](const std::shared_ptr<Ledger>& ledger) {
        BandsTokens tokens{BandsStore(code.keys, ledger, residuals), std::nullopt};
        if (code.values != code.keys) tokens.values = BandsStore(code.values, ledger, residuals);
        return tokens;
      };
      layer.groups.push_back(std::move(group));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace kvspan::detail
