// SPDX-License-Identifier: Apache-2.0
// Baselines that drop tokens, and selectors that decide which tokens another method keeps or reads.
#include "recipe/common_keys.h"
#include "recipe/method_tables.h"

namespace kvspan::detail {
namespace {

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

constexpr std::array<MethodDeclaration, 8> kMethods{{
    {"prune",
     MethodKind::kBaseline,
     TokenUse::kDropsSome,
     "keeps the tokens with the largest key norms",
     "Holographic Spectral Compression, 3.3",
     kPruneKeys,
     {},
     nullptr,
     "prune:keep=0.25"},
    {"window",
     MethodKind::kBaseline,
     TokenUse::kDropsSome,
     "keeps the last tokens",
     "",
     kWindowKeys,
     {},
     nullptr,
     "window:size=2048"},
    {"streaming",
     MethodKind::kBaseline,
     TokenUse::kDropsSome,
     "keeps the first few tokens and the last ones",
     "StreamingLLM (Xiao et al. 2023)",
     kStreamingKeys,
     {},
     nullptr,
     "streaming:sink=4,size=2048"},
    {"h2o", MethodKind::kSelector, TokenUse::kDropsSome,
     "keeps recent tokens and those that received most attention so far", "H2O (Zhang et al. 2023)",
     kH2oKeys, kH2oRules, nullptr, "h2o:keep=0.2+static:rk=32,rv=32"},
    {"scissorhands",
     MethodKind::kSelector,
     TokenUse::kDropsSome,
     "drops tokens that few recent queries attended to",
     "Scissorhands (Liu et al. 2023)",
     kScissorhandsKeys,
     {},
     nullptr,
     "scissorhands:keep=1024"},
    {"snapkv",
     MethodKind::kSelector,
     TokenUse::kDropsSome,
     "keeps the tokens of the prompt that its last queries attend to",
     "SnapKV (Li et al. 2024)",
     kSnapkvKeys,
     {},
     nullptr,
     "snapkv:keep=0.5+oja:ratio=0.6"},
    {"quest",
     MethodKind::kSelector,
     TokenUse::kReadsSome,
     "keeps all, reads the pages whose bounds promise large scores",
     "Quest (Tang et al. 2024)",
     kQuestKeys,
     {},
     nullptr,
     "quest:keep=512+quant:bits=4"},
    {"shadowkv",
     MethodKind::kSelector,
     TokenUse::kReadsSome,
     "keeps all, reads the chunks whose landmarks score highest",
     "ShadowKV (Sun et al. 2024)",
     kShadowkvKeys,
     {},
     nullptr,
     "shadowkv:keep=1024"},
}};

}  // namespace

std::span<const MethodDeclaration> token_methods() noexcept {
  return kMethods;
}

}  // namespace kvspan::detail
