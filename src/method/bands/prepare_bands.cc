// SPDX-License-Identifier: Apache-2.0
// bands: codes of all layers designed together, or learnt by each group alone; tokens in tiles.
#include <algorithm>
#include <string>
#include <utility>

#include "base/fail.h"
#include "method/bands/bands_design.h"
#include "method/bands/bands_parts.h"
#include "method/bands/bands_policy.h"
#include "method/bands/prepare_bands.h"
#include "method/methods/quant_codes.h"

namespace kvspan::detail {
namespace {

// Values earn more bits than keys where they are coded apart and nothing was measured.
constexpr double kHalfGap = 0.35;

// Keys and values in one code.
bool codes_together(const RecipePart& m) {
  const std::string_view share = m.word("share");
  return share == "auto" || share == "kv" || share == "kvgroup";
}

// share=auto: more heads in a code leave less error, and what a code takes to read grows with them.
// Groups of one size, with at most so many numbers.
constexpr std::int32_t kGroupNumbers = 512;

std::int32_t heads_by_themselves(const LayerShape& layer) {
  const std::int32_t most = std::max(1, kGroupNumbers / (layer.key_dim + layer.value_dim));
  std::int32_t heads = std::min(most, layer.kv_heads);
  while (layer.kv_heads % heads != 0) --heads;
  return heads;
}

std::vector<HeadRange> groups_of(const LayerShape& layer, const RecipePart& m) {
  const std::string_view share = m.word("share");
  if (share == "kv") return even_groups(layer, layer.kv_heads);
  if (share == "auto") return even_groups(layer, heads_by_themselves(layer));
  return head_groups(layer, m);
}

BandsOptions options_of(const RecipePart& m, bool weighed) {
  BandsOptions options;
  options.joint = codes_together(m);
  options.layers = static_cast<std::int32_t>(m.count("layers"));
  options.levels = m.levels("levels");
  options.grain = static_cast<std::size_t>(m.count("grain"));
  options.anchor = m.word("rope") == "anchor" ? static_cast<std::int32_t>(m.count("anchor")) : 0;
  options.before_rope = m.word("rope") == "pre";
  options.gain = m.word("gain") == "token";
  options.quantizer =
      m.word("quantizer") == "trellis" ? BandsQuantizer::kTrellis : BandsQuantizer::kUniform;
  options.query_metric = m.word("metric") == "query";
  options.own = m.word("calib") == "online";
  options.balanced = options.own;
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
  if (m.word("rope") == "post" && codes_together(m)) {
    return fail(ErrorCode::kInvalidArgument,
                "bands: rope=post has no joint moments of keys and values; allowed with it: "
                "share=layer, group or head");
  }
  if (m.count("layers") > 1 && (!codes_together(m) || m.word("calib") == "online" || m.on("certify"))) {
    return fail(ErrorCode::kInvalidArgument,
                "bands: layers={} codes keys and values of neighbouring layers together, from a calibration, without "
                "bounds; allowed with it: share=auto, kv or kvgroup, calib=file, certify=off",
                m.count("layers"));
  }
  if (m.word("calib") == "online" && m.on("certify")) {
    return fail(
        ErrorCode::kInvalidArgument,
        "bands: certify=on bounds errors against rows as they came, and with calib=online rows "
        "are rounded to 8 bits before they are coded; allowed with it: calib=file");
  }
  if (m.word("ends") == "int8" && m.on("certify")) {
    return fail(
        ErrorCode::kInvalidArgument,
        "bands: certify=on bounds errors against rows as they came, and with ends=int8 rows "
        "are rounded before they are coded; allowed with it: ends=f16");
  }
  return {};
}

// How rows are held at 8 bits, llama.cpp's way.
class Int8Rows {
 public:
  explicit Int8Rows(std::shared_ptr<Ledger> shared)
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

std::int32_t in_tiles(std::int64_t tokens) {
  const auto tile = static_cast<std::int64_t>(kBandTokens);
  return static_cast<std::int32_t>((tokens + tile - 1) / tile * tile);
}

// Where calibrated codes come from, for people.
std::string source_of(const Calibration& calibration) {
  return fmt::format(
      "from {}, {} tokens of {}, fingerprint {}, {}",
      calibration.source.empty() ? std::string("a calibration in memory")
                                 : "the calibration " + calibration.source,
      calibration.tokens, calibration.model.empty() ? "an unnamed model" : calibration.model,
      calibration.fingerprint.empty() ? "unknown" : calibration.fingerprint,
      has_layer_weights(calibration) ? "layers weighed as measured" : "all layers weighed alike");
}

// Ends, how rows wait, and the policy; codes come from elsewhere.
Result<PreparedGroup> prepare_group(const RecipePart& m, const LayerShape& layer, HeadRange heads,
                                    const BandsOptions& options, const std::string& source,
                                    BitWorth worth, Int8Rows& int8) {
  PreparedGroup group;
  group.options.first_head = heads.first;
  group.options.heads = heads.count;
  group.options.residuals = m.on("certify");
  BandsPolicyOptions policy;
  policy.recent = static_cast<std::int32_t>(m.count("recent"));
  policy.escape = m.number("escape");
  policy.worth = worth;
  policy.narrow_ends = m.word("ends") == "int8";
  policy.source = source;
  // Tiles begin at multiples of 16.
  group.options.tile = BandsStore::kTileTokens;
  group.options.sink = in_tiles(m.count("sink"));
  group.options.sink_waits = policy.narrow_ends;
  if (policy.narrow_ends || options.own) {
    KVSPAN_TRY(policy.narrow, int8.plan(layer, heads));
    group.codes = {policy.narrow->keys->start, policy.narrow->values->start};
  }
  if (options.own) {
    policy.learn = in_tiles(m.count("learn"));
    policy.refresh = in_tiles(m.count("refresh"));
    policy.design = std::make_shared<const BandsOptions>(options);
    const auto parts = [&](bool keys, bool values) {
      return bands_parts(layer, heads.count, keys, values, options);
    };
    BandsShape shape{parts(true, options.joint), std::nullopt};
    if (!options.joint) shape.values = parts(false, true);
    group.options.load_store = [shape = std::move(shape)](const StateReader& from) {
      return BandsTokens::load_learnt(shape, from);
    };
  }
  group.make_policy = [policy](const auto&) { return std::make_unique<BandsPolicy>(policy); };
  return group;
}

// The layers that each layer is coded with.
std::vector<LayerRange> range_of_layers(const CacheShape& shape, std::int32_t most) {
  std::vector<LayerRange> ranges;
  for (const LayerRange& range : layers_coded_together(shape, most)) ranges.insert(ranges.end(), range.count, range);
  return ranges;
}

// One code, saved or just designed.
Result<std::shared_ptr<const BandsCode>> saved_or_given(const PrepareInput& in,
                                                        const BandsParts& like,
                                                        std::shared_ptr<const BandsCode> code) {
  if (in.designs.are_saved()) {
    KVSPAN_TRY(code, BandsCode::load_designed(like, in.designs.saved(), in.shared));
  }
  in.designs.note([code](ByteWriter& out) { code->save_designed(out); });
  return code;
}

// The codes of all groups, from the calibration or as they were saved.
Result<std::vector<std::vector<GroupBands>>> codes_of(
    const PrepareInput& in, const std::vector<std::vector<HeadRange>>& groups,
    const BandsOptions& options) {
  std::vector<std::vector<GroupBands>> designed;
  if (!in.designs.are_saved()) {
    KVSPAN_TRY(designed, design_bands(in.shape, *in.calibration, groups, options, in.shared,
                                      in.designs.progress()));
  }
  designed.resize(groups.size());
  const std::vector<LayerRange> ranges = range_of_layers(in.shape, options.layers);
  for (std::size_t l = 0; l < groups.size(); ++l) {
    designed[l].resize(groups[l].size());
    for (std::size_t g = 0; g < groups[l].size(); ++g) {
      GroupBands& to = designed[l][g];
      to.heads = groups[l][g];
      const auto like = [&](bool keys, bool values) {
        const LayerShape& layer = in.shape.layers[l];
        BandsParts parts = bands_parts(layer, to.heads.count, keys, values, options);
        parts.components = static_cast<std::int32_t>(ranges[l].count) * to.heads.count * (parts.key_dim + parts.value_dim);
        return parts;
      };
      KVSPAN_TRY(to.keys, saved_or_given(in, like(true, options.joint), to.keys));
      if (options.joint) {
        to.values = to.keys;
      } else {
        KVSPAN_TRY(to.values, saved_or_given(in, like(false, true), to.values));
      }
    }
  }
  // All groups share the bits of a side, and so what a bit is worth.
  BitWorth worth = designed.front().front().worth;
  KVSPAN_TRY(worth.keys, in.designs.number([&]() -> Result<double> { return worth.keys; }));
  KVSPAN_TRY(worth.values, in.designs.number([&]() -> Result<double> { return worth.values; }));
  for (std::vector<GroupBands>& layer : designed) {
    for (GroupBands& group : layer) group.worth = worth;
  }
  return designed;
}

}  // namespace

PreparedLayers prepare_bands(const PrepareInput& in) {
  const RecipePart& m = in.method;
  KVSPAN_CHECK_OK(refuse_what_is_not_there(m));
  const bool online = m.word("calib") == "online";
  const bool weighed = !online && !in.designs.are_saved() && has_layer_weights(*in.calibration);
  const BandsOptions options = options_of(m, weighed);
  std::vector<std::vector<HeadRange>> groups;
  for (const LayerShape& layer : in.shape.layers) groups.push_back(groups_of(layer, m));
  std::vector<std::vector<GroupBands>> designed;
  std::string source;
  if (!online) {
    KVSPAN_TRY(designed, codes_of(in, groups, options));
    KVSPAN_TRY(source, in.designs.text(
                           [&]() -> Result<std::string> { return source_of(*in.calibration); }));
  }
  Int8Rows int8(in.shared);
  std::vector<PreparedLayer> layers(groups.size());
  const std::vector<LayerRange> ranges = range_of_layers(in.shape, options.layers);
  for (std::size_t l = 0; l < groups.size(); ++l) {
    const bool last = l == ranges[l].last();
    if (last) layers[l].layers_led = ranges[l].count - 1;
    for (std::size_t g = 0; g < groups[l].size(); ++g) {
      KVSPAN_TRY(PreparedGroup group,
                 prepare_group(m, in.shape.layers[l], groups[l][g], options, source,
                               online ? BitWorth() : designed[l][g].worth, int8));
      // The last layer's policy deals with the rows of all.
      group.options.follows = !last;
      if (!last) group.make_policy = nullptr;
      if (!online) {
        group.make_store = [codes = designed[l][g],
                            residuals = m.on("certify")](const std::shared_ptr<Ledger>& ledger) {
          return std::make_unique<BandsTokens>(codes, ledger, residuals);
        };
      }
      layers[l].groups.push_back(std::move(group));
    }
  }
  return layers;
}

}  // namespace kvspan::detail
