// SPDX-License-Identifier: Apache-2.0
// Baselines that drop tokens, and selectors that decide which tokens another method keeps or reads.
#include <algorithm>

#include "base/fail.h"
#include "method/policies/drop_policy.h"
#include "method/prepare_parts.h"
#include "method/selectors/drop_selectors.h"
#include "method/selectors/read_selectors.h"
#include "recipe/common_keys.h"
#include "recipe/recipe.h"

namespace kvspan {
namespace {

using namespace detail;

constexpr KeyDeclaration keep_key(std::string_view default_text, std::string_view summary) {
  return of_kind(ValueKind::kAmount, "keep", default_text, summary);
}

constexpr std::array<KeyDeclaration, 4> kPruneKeys{
    keep_key("0.5", "tokens kept of those between sink and recent, largest key norms first"),
    sink_key("32"), recent_key("128"), kFullStore};
constexpr std::array<KeyDeclaration, 2> kWindowKeys{
    count("size", "1024", 1, kMaxTokens, "last tokens kept"), kFullStore};
constexpr std::array<KeyDeclaration, 3> kStreamingKeys{
    count("sink", "4", 0, kMaxTokens, "first tokens kept"),
    count("size", "1024", 1, kMaxTokens, "last tokens kept"), kFullStore};

constexpr std::array<KeyDeclaration, 3> kH2oKeys{
    keep_key("0.5", "tokens kept: half of them heavy hitters, half the most recent"),
    of_kind(ValueKind::kAmount, "heavy", "", "heavy hitters kept"),
    of_kind(ValueKind::kAmount, "recent", "", "most recent tokens kept")};
constexpr std::array<KeyRule, 4> kH2oRules{{
    {KeyRule::Kind::kExcludes, "heavy", "keep", {}, {}, "keep is the sum of heavy and recent"},
    {KeyRule::Kind::kExcludes, "recent", "keep", {}, {}, "keep is the sum of heavy and recent"},
    {KeyRule::Kind::kTogether, "heavy", "recent", {}, {}, "keep sets both at once"},
    {KeyRule::Kind::kTogether, "recent", "heavy", {}, {}, "keep sets both at once"},
}};

constexpr std::array<KeyDeclaration, 4> kScissorhandsKeys{
    keep_key("0.5", "tokens kept"),
    count("history", "400", 1, 65536, "last queries whose attention tells which tokens matter"),
    count("recent", "10", 0, kMaxTokens, "last tokens that are never dropped"),
    of_kind(ValueKind::kAmount, "drop", "0.5",
            "tokens dropped at a time, or their share of those kept")};

constexpr std::array<KeyDeclaration, 4> kSnapkvKeys{
    keep_key("0.5", "tokens of the prompt kept, the observing window among them"),
    count("window", "32", 1, 4096, "last queries of the prompt that observe"),
    choice("pool", "7", "1|3|5|7|9|11|13|15|17|21|31|63",
           "width of the pooling that keeps neighbours together; 1: none"),
    word("pooling", "max", "max|mean", "how neighbours are pooled")};

constexpr std::array<KeyDeclaration, 3> kQuestKeys{
    keep_key("1024", "tokens read at each step"),
    count("page", "16", 1, 4096, "tokens whose smallest and largest key coordinates are kept"),
    count("skip", "2", 0, 1024, "first layers that read everything")};

constexpr std::array<KeyDeclaration, 5> kShadowkvKeys{
    keep_key("2048", "tokens read at each step"),
    of_kind(ValueKind::kRank, "rank", "0.15625",
            "directions kept of the keys of all heads together, before RoPE (d is the width of "
            "them all), where no method stores them"),
    count("chunk", "8", 1, 4096, "tokens whose mean key is their landmark"),
    count("outliers", "48", 0, 65536, "chunks worst matched by their landmark, always read"),
    count("recent", "32", 0, kMaxTokens, "last tokens, always read")};

// Each head drops tokens of its own, as the policies that `make` gives say.
template <class Make>
PreparedLayers prepare_tokens(const PrepareInput& in, const Make& make) {
  const RecipePart& m = in.method;
  std::vector<PreparedLayer> layers;
  for (const LayerShape& shape : in.shape.layers) {
    PreparedLayer layer;
    for (std::int32_t h = 0; h < shape.kv_heads; ++h) {
      PreparedGroup group;
      group.options.first_head = h;
      group.options.ends = m.word("store") == "f32" ? Element::kF32 : Element::kF16;
      if (m.declares("sink")) group.options.sink = whole(m, "sink");
      group.make_policy = make;
      layer.groups.push_back(std::move(group));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

PreparedLayers make_prune(const PrepareInput& in) {
  return prepare_tokens(
      in, [keep = in.method.amount("keep"), recent = whole(in.method, "recent")](const auto&) {
        return std::make_unique<PrunePolicy>(keep, recent);
      });
}

PreparedLayers make_window(const PrepareInput& in) {
  return prepare_tokens(in, [size = whole(in.method, "size")](const auto&) {
    return std::make_unique<WindowPolicy>(size);
  });
}

MakeSelector heavy(const HeavyOptions& options, std::int32_t history) {
  return [=](const std::shared_ptr<Ledger>& ledger) {
    return std::make_unique<HeavySelector>(options, history, ledger);
  };
}

MakeSelector make_snapkv(const RecipePart& s, std::size_t) {
  return [options = SnapkvOptions{s.amount("keep"), whole(s, "window"), whole(s, "pool"),
                                  s.word("pooling") == "mean"}](const auto& ledger) {
    return std::make_unique<SnapkvSelector>(options, ledger);
  };
}

Status check_h2o(const RecipePart& s) {
  if (!s.has("heavy") || !s.has("recent") ||
      s.amount("heavy").is_share == s.amount("recent").is_share) {
    return {};
  }
  return fail(ErrorCode::kInvalidArgument,
              "heavy and recent are a number of tokens and a share; allowed: both numbers, or both "
              "shares");
}

MakeSelector make_h2o(const RecipePart& s, std::size_t) {
  HeavyOptions options;
  if (s.has("heavy") && s.has("recent")) {
    options.recent = s.amount("recent");
    options.keep = {options.recent.is_share, options.recent.value + s.amount("heavy").value};
  } else {
    options.keep = s.amount("keep");
    options.recent = {options.keep.is_share,
                      options.keep.is_share
                          ? options.keep.value / 2
                          : static_cast<double>(static_cast<std::int64_t>(options.keep.value) / 2)};
  }
  return heavy(options, kAllQueries);
}

MakeSelector make_scissorhands(const RecipePart& s, std::size_t) {
  HeavyOptions options;
  options.keep = s.amount("keep");
  options.recent = {false, static_cast<double>(s.count("recent"))};
  options.history_only = true;
  options.drop = s.amount("drop");
  return heavy(options, whole(s, "history"));
}

MakeSelector reading(const ReadOptions& options) {
  return [options](const auto& ledger) { return std::make_unique<ReadSelector>(options, ledger); };
}

MakeSelector make_quest(const RecipePart& s, std::size_t layer) {
  if (layer < static_cast<std::size_t>(s.count("skip"))) return {};
  ReadOptions options;
  options.keep = s.amount("keep");
  options.page = whole(s, "page");
  return reading(options);
}

MakeSelector make_shadowkv(const RecipePart& s, std::size_t) {
  ReadOptions options;
  options.keep = s.amount("keep");
  options.page = whole(s, "chunk");
  options.landmarks = true;
  options.outliers = whole(s, "outliers");
  options.recent = whole(s, "recent");
  return reading(options);
}

Status check_shadowkv(const RecipePart& selector, const RecipePart& method) {
  const bool nothing_else = method.method().make == find_method("full")->make;
  if (!selector.given("rank") || nothing_else) return {};
  return fail(ErrorCode::kInvalidArgument,
              "rank= says how shadowkv stores keys, and here {} stores them", method.name());
}

// The leading directions of the keys of all heads together, before RoPE, block by block, and values
// as they are.
std::string stores_by_rank(const CacheShape& shape, const RecipePart& selector) {
  if (!selector.given("rank")) return {};
  const LayerShape& layer = shape.layers.front();
  const std::int32_t width = layer.kv_heads * layer.key_dim;
  const std::optional<std::int32_t> rank = selector.rank("rank").resolve(width);
  if (!rank) return {};  // all of them
  return fmt::format(
      "spectral:rk={:.9f},rv=full,block=256,rope=pre,share=layer,store=f16,recent={}",
      static_cast<double>(std::clamp(*rank, 1, width)) / width, selector.count("recent"));
}

}  // namespace

MethodDeclaration prune_method() {
  return {
      .name = "prune",
      .kind = MethodKind::kBaseline,
      .tokens = TokenUse::kDropsSome,
      .summary = "keeps the tokens with the largest key norms",
      .source = "Holographic Spectral Compression, 3.3",
      .keys = kPruneKeys,
      .example = "prune:keep=0.25",
      .size_keys = "keep",
      .make = make_prune,
  };
}

MethodDeclaration window_method() {
  return {
      .name = "window",
      .kind = MethodKind::kBaseline,
      .tokens = TokenUse::kDropsSome,
      .summary = "keeps the last tokens",
      .keys = kWindowKeys,
      .example = "window:size=2048",
      .size_keys = "size",
      .make = make_window,
  };
}

MethodDeclaration streaming_method() {
  return {
      .name = "streaming",
      .kind = MethodKind::kBaseline,
      .tokens = TokenUse::kDropsSome,
      .summary = "keeps the first few tokens and the last ones",
      .source = "StreamingLLM (Xiao et al. 2023)",
      .keys = kStreamingKeys,
      .example = "streaming:sink=4,size=2048",
      .size_keys = "size",
      .make = make_window,
  };
}

MethodDeclaration h2o_method() {
  return {
      .name = "h2o",
      .kind = MethodKind::kSelector,
      .tokens = TokenUse::kDropsSome,
      .summary = "keeps recent tokens and those that received most attention so far",
      .source = "H2O (Zhang et al. 2023)",
      .keys = kH2oKeys,
      .rules = kH2oRules,
      .check = check_h2o,
      .example = "h2o:keep=0.2+static:rk=32,rv=32",
      .size_keys = "keep",
      .make_selector = make_h2o,
  };
}

MethodDeclaration scissorhands_method() {
  return {
      .name = "scissorhands",
      .kind = MethodKind::kSelector,
      .tokens = TokenUse::kDropsSome,
      .summary = "drops tokens that few recent queries attended to",
      .source = "Scissorhands (Liu et al. 2023)",
      .keys = kScissorhandsKeys,
      .example = "scissorhands:keep=1024",
      .size_keys = "keep",
      .make_selector = make_scissorhands,
  };
}

MethodDeclaration snapkv_method() {
  return {
      .name = "snapkv",
      .kind = MethodKind::kSelector,
      .tokens = TokenUse::kDropsSome,
      .summary = "keeps the tokens of the prompt that its last queries attend to",
      .source = "SnapKV (Li et al. 2024)",
      .keys = kSnapkvKeys,
      .example = "snapkv:keep=0.5+oja:ratio=0.6",
      .size_keys = "keep",
      .make_selector = make_snapkv,
  };
}

MethodDeclaration quest_method() {
  return {
      .name = "quest",
      .kind = MethodKind::kSelector,
      .tokens = TokenUse::kReadsSome,
      .summary = "keeps all, reads the pages whose bounds promise large scores",
      .source = "Quest (Tang et al. 2024)",
      .keys = kQuestKeys,
      .example = "quest:keep=512+quant:bits=4",
      .make_selector = make_quest,
      .page_key = "page",
  };
}

MethodDeclaration shadowkv_method() {
  return {
      .name = "shadowkv",
      .kind = MethodKind::kSelector,
      .tokens = TokenUse::kReadsSome,
      .summary = "keeps all, reads the chunks whose landmarks score highest",
      .source = "ShadowKV (Sun et al. 2024)",
      .keys = kShadowkvKeys,
      .example = "shadowkv:keep=1024",
      .make_selector = make_shadowkv,
      .page_key = "chunk",
      .check_method = check_shadowkv,
      .stores_by = stores_by_rank,
  };
}

}  // namespace kvspan
