// SPDX-License-Identifier: Apache-2.0
// The rows of bands, and of auto, which chooses its bits.
#include "base/fail.h"
#include "codec/bands/bands_pack.h"
#include "method/bands/choose_recipe.h"
#include "method/bands/prepare_bands.h"
#include "recipe/common_keys.h"
#include "recipe/recipe.h"

namespace kvspan {
namespace {

using namespace detail;

constexpr std::array<KeyDeclaration, 21> kBandsKeys{
    number("bits", "2", 0.05, 8.0, "average bits of a number, keys and values alike"),
    number("kbits", "", 0.0, 8.0, "average bits of keys, where they are coded apart"),
    number("vbits", "", 0.0, 8.0, "average bits of values, where they are coded apart"),
    word("share", "auto", "auto|kv|kvgroup|layer|group|head",
         "what is coded together: keys and values of all heads of a layer (kv), of `heads` "
         "neighbours (kvgroup), of as many as make 512 numbers (auto); all keys or all values of a "
         "layer, those of `heads` neighbours, of one head"),
    count("heads", "2", 1, 1024, "KV heads of a group (share=kvgroup and share=group)"),
    count("layers", "1", 1, 6,
          "neighbouring layers that are coded together, where they are alike: less error for the same bytes, and as many "
          "times the work of reading"),
    of_kind(ValueKind::kLevels, "levels", "0-6/8", "bit widths that a direction can get"),
    count("grain", "1", 1, 1024,
          "neighbouring directions, by importance, that get the same width"),
    word("rope", "anchor", "anchor|pre|post", kRope.summary),
    count("anchor", "256", 16, 4096, kAnchorSummary, 16),
    word("gain", "token", "token|none", "one scale for each token, or none"),
    word("quantizer", "trellis", "trellis|uniform",
         "codes of neighbouring directions share finer levels, or each has its own"),
    word("metric", "query", "query|iso",
         "errors count by what queries and the output projection see, or all alike"),
    share("escape", "5%", 0.0, 1.0,
          "share of tokens that may stay exact; those do whose error costs more than their exact rows"),
    word("calib", "file", "file|online",
         "code from a calibration, or from the text's own start, without one (and then none is "
         "used)"),
    count("learn", "2048", 48, kMaxTokens,
          "tokens after the sink, held at 8 bits until there are so many, whose moments give the "
          "code (calib=online)"),
    count("refresh", "0", 0, kMaxTokens,
          "so many later tokens wait at 8 bits in turn and give the next code; 0: one code for "
          "all (calib=online)"),
    sink_key("32"),
    recent_key("128"),
    word("ends", "f16", "f16|int8", "how sink and recent tokens are stored"),
    kCertify};
constexpr std::string_view kBitsReason = "bits is the average of both";
constexpr std::array<KeyRule, 11> kBandsRules{{
    {KeyRule::Kind::kExcludes, "kbits", "bits", {}, {}, kBitsReason},
    {KeyRule::Kind::kExcludes, "vbits", "bits", {}, {}, kBitsReason},
    {KeyRule::Kind::kTogether, "kbits", "vbits", {}, {}, "bits sets both at once"},
    {KeyRule::Kind::kTogether, "vbits", "kbits", {}, {}, "bits sets both at once"},
    {KeyRule::Kind::kOnlyWith,
     "kbits",
     "share",
     "layer|group|head",
     {},
     "the others code keys and values together"},
    {KeyRule::Kind::kOnlyWith,
     "vbits",
     "share",
     "layer|group|head",
     {},
     "the others code keys and values together"},
    {KeyRule::Kind::kOnlyWith,
     "heads",
     "share",
     "kvgroup|group",
     {},
     "a head alone and a whole layer need no number"},
    {KeyRule::Kind::kOnlyWith, "anchor", "rope", "anchor", {}, "nothing else has an anchor"},
    {KeyRule::Kind::kOnlyWith,
     "learn",
     "calib",
     "online",
     {},
     "a calibration file already holds the moments"},
    {KeyRule::Kind::kOnlyWith,
     "refresh",
     "calib",
     "online",
     {},
     "a calibration file gives one code for all texts"},
    {KeyRule::Kind::kImplies, "metric", "calib", "online", "iso",
     "the text does not tell what queries and the output projection see"},
}};

// An average between the lowest and the highest level can be met; nothing else can.
Status check_bands(const RecipePart& part) {
  const LevelSet levels = part.levels("levels");
  for (const std::string_view key : {"bits", "kbits", "vbits"}) {
    if (!part.has(key)) continue;
    const double bits = part.number(key);
    if (bits >= levels.lowest() && bits <= levels.highest()) continue;
    return fail(ErrorCode::kInvalidArgument,
                "{}={} cannot be met by levels={}; allowed: {} from {} to {}, or other levels", key,
                bits, text_of(ValueKind::kLevels, levels), key, levels.lowest(), levels.highest());
  }
  return {};
}

constexpr std::array<KeyDeclaration, 3> kAutoKeys{
    of_kind(ValueKind::kBytes, "budget", "", "bytes that the cache may take"),
    share("quality", "", 0.00001, 1.0, "perplexity that may be lost"),
    count("ctx", "", 1, kMaxTokens, "tokens that must fit the budget; else the model's context")};
constexpr std::array<KeyRule, 3> kAutoRules{{
    {KeyRule::Kind::kOneOf, "budget|quality", {}, {}, {}, "what must the choice fit?"},
    {KeyRule::Kind::kExcludes, "budget", "quality", {}, {}, "one of them decides the other"},
    {KeyRule::Kind::kTogether, "ctx", "budget", {}, {}, "quality does not depend on it"},
}};

std::string why_tiles_stay(const RecipePart&) {
  return "bands packs tiles of 16 tokens, from which none can be taken out";
}

Result<std::string> choose(const CacheShape& shape, const RecipePart& part,
                           const Calibration& calibration) {
  KVSPAN_TRY(const Choice choice, choose_recipe(shape, part, calibration));
  return choice.recipe;
}

}  // namespace

MethodDeclaration bands_method() {
  return {
      .name = "bands",
      .kind = MethodKind::kMethod,
      .summary = "learned directions, each with the bits that its importance earns, read in place",
      .source = "kvspan's own",
      .keys = kBandsKeys,
      .rules = kBandsRules,
      .check = check_bands,
      .example = "bands:bits=2",
      .size_keys = "bits",
      .make = prepare_bands,
      .needs_calibration = calibrated_by_words,
      .tile_tokens = kBandTokens,
      .why_tokens_stay = why_tiles_stay,
  };
}

MethodDeclaration auto_method() {
  return {
      .name = "auto",
      .kind = MethodKind::kChooser,
      .summary = "the recipe that fits a number of bytes, or costs at most so much quality",
      .source = "kvspan's own",
      .keys = kAutoKeys,
      .rules = kAutoRules,
      .example = "auto:budget=64MiB",
      .choose = choose,
      .needs_calibration = always,
  };
}

}  // namespace kvspan
