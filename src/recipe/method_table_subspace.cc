// SPDX-License-Identifier: Apache-2.0
// Methods that keep the leading learned directions of keys and values.
#include "recipe/common_keys.h"
#include "recipe/method_tables.h"

namespace kvspan::detail {
namespace {

constexpr std::array<KeyDeclaration, 2> kStaticOwn{
    word("basis", "k", "k|qk|attn",
         "what key directions are taken from: keys, queries and keys stacked, or the error of q.k"),
    word("read", "coefficients", "coefficients|reconstruct",
         "attend in coefficient space, or rebuild rows first (the same up to rounding)")};
constexpr auto kStaticKeys =
    join(rank_keys("d/4", "d/4", "fixed|table"), kStaticOwn, subspace_keys("f16", "32", "128"));

constexpr KeyDeclaration kSketch =
    of_kind(ValueKind::kRows, "sketch", "2r", "rows of each Frequent Directions sketch");
constexpr KeyDeclaration kBases =
    word("bases", "f16", "f32|f16|int8", "how the basis of a segment is stored");
constexpr KeyDeclaration kFirst =
    word("first", "calibration", "calibration|full",
         "until the sketch holds enough: calibrated bases, or full rank");
constexpr std::string_view kTauSummary =
    "new segment when the relative residual exceeds this; calibrated: the percentile of the "
    "calibration";
constexpr std::array<KeyDeclaration, 15> kFdOwn{
    kSketch,
    kBases,
    word("shared", "off", "off|on", "one sketch for keys and values together"),
    count("chunk", "256", 16, kMaxTokens, "longest segment, in tokens"),
    count("min_chunk", "64", 1, kMaxTokens,
          "shortest segment, so that outliers cause no storm of segments"),
    number("tau", "calibrated", 0.0, 1.0, kTauSummary, "calibrated"),
    number("tau_k", "", 0.0, 1.0, "tau of keys alone", "calibrated"),
    number("tau_v", "", 0.0, 1.0, "tau of values alone", "calibrated"),
    share("percentile", "95%", 0.5, 1.0,
          "share of calibration tokens below a calibrated threshold"),
    count("warm", "0", 0, 65536,
          "at a switch, rebuild the sketch from this many last tokens; 0: keep it"),
    count("lookahead", "0", 0, 65536,
          "tokens held at full rank so that the basis knows what follows"),
    word("update", "every", "every|batch|subsample", "which tokens enter the sketch"),
    count("step", "8", 2, 4096, "tokens of a batch, or one token in so many (update=)"),
    number("merge", "off", 0.0, 1.0,
           "merge neighbouring segments whose subspaces overlap by at least this share", "off"),
    kFirst};
constexpr auto kFdKeys =
    join(rank_keys("d/4", "d/4", "fixed|table"), kFdOwn, subspace_keys("f16", "32", "128"));
constexpr std::string_view kTauReason = "tau sets both";
constexpr std::array<KeyRule, 5> kFdOwnRules{{
    {KeyRule::Kind::kExcludes, "tau_k", "tau", {}, {}, kTauReason},
    {KeyRule::Kind::kExcludes, "tau_v", "tau", {}, {}, kTauReason},
    {KeyRule::Kind::kTogether, "tau_k", "tau_v", {}, {}, "tau sets both at once"},
    {KeyRule::Kind::kTogether, "tau_v", "tau_k", {}, {}, "tau sets both at once"},
    {KeyRule::Kind::kOnlyWith,
     "step",
     "update",
     "batch|subsample",
     {},
     "update=every takes each token as it comes"},
}};
constexpr auto kFdRules = join(kSubspaceRules, kFdOwnRules);

Status check_fd(const RecipePart& part) {
  if (part.count("min_chunk") <= part.count("chunk")) return {};
  return fail(ErrorCode::kInvalidArgument, "min_chunk={} exceeds chunk={}; allowed: at most chunk",
              part.count("min_chunk"), part.count("chunk"));
}

constexpr std::array<KeyDeclaration, 3> kRotateOwn{
    kSketch,
    count("every", "64", 1, kMaxTokens,
          "tokens between two refreshes of the basis, when stored coefficients are mapped into it"),
    kFirst};
constexpr auto kRotateKeys =
    join(rank_keys("d/4", "d/4", "fixed|table"), kRotateOwn, subspace_keys("f16", "32", "128"));

constexpr std::array<KeyDeclaration, 8> kOjaOwn{
    kBases,
    number("eta_prefill", "0.1", 1e-6, 100.0, "step size of the prompt's one batch"),
    number("eta", "0.05", 1e-6, 100.0, "step size while decoding"),
    count("buffer", "32", 1, 4096, "tokens gathered at full rank for one decoding step"),
    share("top", "5%", 0.0001, 1.0,
          "share of the prompt's tokens, by attention received, that drive its batch"),
    count("queries", "32", 1, 4096, "last queries of the prompt whose attention counts"),
    word("stale", "segment", "segment|rotate|reuse",
         "coefficients of an older basis: keep it with them, map them into the new one, or read "
         "them with the new one as they are"),
    word("norm", "batch", "none|token|batch",
         "what makes the step size independent of the activations' scale")};
constexpr auto kOjaKeys =
    join(rank_keys("d/4", "d/4", "fixed|table"), kOjaOwn, subspace_keys("f16", "32", "32"));

constexpr std::array<KeyRule, 1> kOjaOwnRules{{
    {KeyRule::Kind::kOnlyWith,
     "bases",
     "stale",
     "segment",
     {},
     "with stale=rotate and reuse there is one basis, in f32"},
}};
constexpr auto kOjaRules = join(kSubspaceRules, kOjaOwnRules);

constexpr std::array<KeyDeclaration, 4> kSpectralOwn{
    count("block", "512", 16, 65536, "tokens gathered at full rank for one SVD"),
    word("scale", "head", "head|tile", "numbers that share an int8 or int4 scale"),
    word("weight", "none", "none|attention",
         "rows of V weighted by the attention they received before the SVD"),
    kBases};
constexpr auto kSpectralKeys = join(rank_keys("16", "32", "fixed|table|layers"), kSpectralOwn,
                                    subspace_keys("int8", "32", "128"));
constexpr std::string_view kLayersReason = "ranks=layers has its own table of ranks";
constexpr std::array<KeyRule, 4> kSpectralOwnRules{{
    {KeyRule::Kind::kOnlyWith, "rk", "ranks", "fixed|table", {}, kLayersReason},
    {KeyRule::Kind::kOnlyWith, "rv", "ranks", "fixed|table", {}, kLayersReason},
    {KeyRule::Kind::kOnlyWith, "ratio", "ranks", "fixed|table", {}, kLayersReason},
    {KeyRule::Kind::kOnlyWith,
     "scale",
     "store",
     "int8|int4",
     {},
     "floating point is stored without scales"},
}};
constexpr auto kSpectralRules = join(kSubspaceRules, kSpectralOwnRules);

constexpr std::array<MethodDeclaration, 5> kMethods{{
    {"static", MethodKind::kMethod, TokenUse::kAll,
     "the leading directions of a calibration text, the same for every text",
     "Online Subspace Projection, s4; OjaKV, StaticPCA and Eigen-N", kStaticKeys, kSubspaceRules,
     nullptr, "static:rk=16,rv=32"},
    {"fd", MethodKind::kMethod, TokenUse::kAll,
     "Frequent Directions sketches follow the text; a new segment, with a new basis, when it "
     "drifts",
     "Online Subspace Projection, s5-s7; Ghashami et al. 2016", kFdKeys, kFdRules, check_fd,
     "fd:rk=d/4,rv=d/4,chunk=256,tau=0.15"},
    {"rotate", MethodKind::kMethod, TokenUse::kAll,
     "one segment whose basis is refreshed and whose coefficients are mapped along",
     "Low-Rank KV Cache Subspaces, variant 2", kRotateKeys, kSubspaceRules, nullptr,
     "rotate:rk=16,rv=16,every=64"},
    {"oja", MethodKind::kMethod, TokenUse::kAll,
     "Oja's rule turns calibrated bases towards the tokens that receive attention",
     "OjaKV (Zhu et al.), s5, Algorithm 1", kOjaKeys, kOjaRules, nullptr,
     "oja:ratio=0.6,store=int8"},
    {"spectral", MethodKind::kMethod, TokenUse::kAll,
     "one SVD per head and block of tokens, int8 coefficients", "Holographic Spectral Compression",
     kSpectralKeys, kSpectralRules, nullptr, "spectral:rk=16,rv=32,block=512"},
}};

}  // namespace

std::span<const MethodDeclaration> subspace_methods() noexcept {
  return kMethods;
}

}  // namespace kvspan::detail
