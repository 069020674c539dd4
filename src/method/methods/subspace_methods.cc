// SPDX-License-Identifier: Apache-2.0
// Methods that keep the leading learned directions of keys and values: their rows, and in what they
// differ.
#include <algorithm>

#include "base/fail.h"
#include "method/methods/prepare_subspace.h"
#include "method/policies/fd_policy.h"
#include "method/policies/fixed_policy.h"
#include "method/policies/oja_policy.h"
#include "method/policies/rotate_policy.h"
#include "method/policies/spectral_policy.h"
#include "recipe/common_keys.h"
#include "recipe/recipe.h"

namespace kvspan {
namespace {

using namespace detail;

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

Result<FdOptions> fd_options(const PrepareInput& in, std::size_t layer, const CodingPlan& plan) {
  const RecipePart& m = in.method;
  FdOptions options;
  options.chunk = static_cast<std::int32_t>(m.count("chunk"));
  options.min_chunk = static_cast<std::int32_t>(m.count("min_chunk"));
  options.shared = m.on("shared");
  options.warm = static_cast<std::int32_t>(m.count("warm"));
  options.lookahead = static_cast<std::int32_t>(m.count("lookahead"));
  if (m.word("update") == "subsample") options.every = static_cast<std::int32_t>(m.count("step"));
  if (!m.is_word("merge")) options.merge = m.number("merge");
  const auto tau = [&](bool keys) -> Result<double> {
    const std::string_view key = m.has("tau") ? "tau" : keys ? "tau_k" : "tau_v";
    if (!m.is_word(key)) return m.number(key);
    const std::optional<SidePlan>& side = keys ? plan.keys : plan.values;
    if (!side) return 1.0;
    return in.designs.number([&]() -> Result<double> {
      return calibrated_tau(in.calibration->layers[layer], *side, plan.first_head, keys,
                            m.number("percentile"));
    });
  };
  KVSPAN_TRY(options.key_tau, tau(true));
  KVSPAN_TRY(options.value_tau, tau(false));
  return options;
}

OjaPolicyOptions oja_options(const RecipePart& m) {
  OjaPolicyOptions options;
  options.eta_prefill = m.number("eta_prefill");
  options.eta = m.number("eta");
  options.top = m.number("top");
  options.norm = m.word("norm") == "none"    ? OjaNorm::kNone
                 : m.word("norm") == "token" ? OjaNorm::kToken
                                             : OjaNorm::kBatch;
  options.stale = m.word("stale") == "segment"  ? Stale::kSegment
                  : m.word("stale") == "rotate" ? Stale::kRotate
                                                : Stale::kReuse;
  return options;
}

// l as a multiple of the rank; a fixed number of rows is rounded up to one.
std::int32_t sketch_per_rank(const RecipePart& m, const CodingPlan& plan) {
  const SketchRows rows = m.rows("sketch");
  if (rows.times_rank) return std::max(1, rows.count);
  std::int32_t rank = 1;
  if (plan.keys) rank = std::max(rank, plan.keys->rank.directions);
  if (plan.values) rank = std::max(rank, plan.values->rank.directions);
  return std::max(1, (rows.count + rank - 1) / rank);
}

// fd: shared=on has keys and values as rows of the same sketch.
Status check_shared_sketch(const RecipePart& m, const LayerShape& shape, const RankTable& ranks,
                           std::size_t layer) {
  if (!m.on("shared")) return {};
  if (shape.key_dim != shape.value_dim) {
    return fail(ErrorCode::kInvalidArgument,
                "fd: shared=on needs keys and values of one dimension; layer {} has {} and {}",
                layer, shape.key_dim, shape.value_dim);
  }
  for (std::size_t g = 0; g < ranks.keys[layer].size(); ++g) {
    if (ranks.keys[layer][g] && ranks.values[layer][g]) continue;
    return fail(ErrorCode::kInvalidArgument,
                "fd: shared=on with rk=full or rv=full; allowed: ranks for both");
  }
  return {};
}

PreparedLayers make_static(const PrepareInput& given) {
  Calibration whole_calibration;
  KVSPAN_TRY(const PrepareInput in, with_whole_calibration(given, whole_calibration));
  SubspaceMethod method;
  method.starts_calibrated = true;
  method.key_basis = in.method.word("basis");
  method.reconstructs = in.method.word("read") == "reconstruct";
  method.set_policy = [](std::size_t, const auto& plan, PreparedGroup& group) -> Status {
    group.make_policy = [plan](const auto&) { return std::make_unique<FixedPolicy>(plan); };
    return {};
  };
  return prepare_subspace(in, method);
}

PreparedLayers make_fd(const PrepareInput& given) {
  Calibration whole_calibration;
  KVSPAN_TRY(const PrepareInput in, with_whole_calibration(given, whole_calibration));
  SubspaceMethod method;
  method.starts_calibrated = in.method.word("first") == "calibration";
  method.own_bases = true;
  method.check = check_shared_sketch;
  method.set_policy = [&](std::size_t layer, const auto& plan, PreparedGroup& group) -> Status {
    KVSPAN_TRY(FdOptions options, fd_options(in, layer, *plan));
    options.sketch_per_rank = sketch_per_rank(in.method, *plan);
    group.make_policy = [plan, options](const auto& ledger) {
      return std::make_unique<FdPolicy>(plan, options, ledger);
    };
    return {};
  };
  return prepare_subspace(in, method);
}

PreparedLayers make_rotate(const PrepareInput& given) {
  Calibration whole_calibration;
  KVSPAN_TRY(const PrepareInput in, with_whole_calibration(given, whole_calibration));
  SubspaceMethod method;
  method.unit = whole(in.method, "every");
  method.set_policy = [&](std::size_t, const auto& plan, PreparedGroup& group) -> Status {
    group.make_policy = [plan, rows = sketch_per_rank(in.method, *plan)](const auto& ledger) {
      return std::make_unique<RotatePolicy>(plan, rows, ledger);
    };
    return {};
  };
  return prepare_subspace(in, method);
}

PreparedLayers make_oja(const PrepareInput& given) {
  Calibration whole_calibration;
  KVSPAN_TRY(const PrepareInput in, with_whole_calibration(given, whole_calibration));
  SubspaceMethod method;
  method.unit = whole(in.method, "buffer");
  method.starts_calibrated = true;
  method.own_bases = in.method.word("stale") == "segment";
  method.set_policy = [&](std::size_t, const auto& plan, PreparedGroup& group) -> Status {
    group.options.scores = true;
    group.observed_queries = whole(in.method, "queries");
    group.make_policy = [plan, options = oja_options(in.method)](const auto& ledger) {
      return std::make_unique<OjaPolicy>(plan, options, ledger);
    };
    return {};
  };
  return prepare_subspace(in, method);
}

PreparedLayers make_spectral(const PrepareInput& given) {
  Calibration whole_calibration;
  KVSPAN_TRY(const PrepareInput in, with_whole_calibration(given, whole_calibration));
  SubspaceMethod method;
  method.unit = whole(in.method, "block");
  method.own_bases = true;
  method.scale_rows = in.method.word("scale") == "tile" ? 32 : 0;
  method.weighs_values = in.method.word("weight") == "attention";
  method.set_policy = [](std::size_t, const auto& plan, PreparedGroup& group) -> Status {
    group.options.scores = plan->weigh_values;
    group.observed_queries = plan->weigh_values ? kAllQueries : 0;
    group.make_policy = [plan](const auto&) { return std::make_unique<SpectralPolicy>(plan); };
    return {};
  };
  return prepare_subspace(in, method);
}

std::string why_coded_tokens_stay(const RecipePart& part) {
  if (!part.word("store").starts_with("int")) return {};
  return fmt::format(
      "with store={} one scale of spectral covers several tokens; store=f16 has none",
      part.word("store"));
}

}  // namespace

MethodDeclaration static_method() {
  return {
      .name = "static",
      .kind = MethodKind::kMethod,
      .summary = "the leading directions of a calibration text, the same for every text",
      .source = "Online Subspace Projection, s4; OjaKV, StaticPCA and Eigen-N",
      .keys = kStaticKeys,
      .rules = kSubspaceRules,
      .example = "static:rk=16,rv=32",
      .size_keys = "rk|rv",
      .make = make_static,
      .needs_calibration = always,
  };
}

MethodDeclaration fd_method() {
  return {
      .name = "fd",
      .kind = MethodKind::kMethod,
      .summary =
          "Frequent Directions sketches follow the text; a new segment, with a new basis, when it "
          "drifts",
      .source = "Online Subspace Projection, s5-s7; Ghashami et al. 2016",
      .keys = kFdKeys,
      .rules = kFdRules,
      .check = check_fd,
      .example = "fd:rk=d/4,rv=d/4,chunk=256,tau=0.15",
      .size_keys = "rk|rv",
      .make = make_fd,
      .needs_calibration = calibrated_by_words,
  };
}

MethodDeclaration rotate_method() {
  return {
      .name = "rotate",
      .kind = MethodKind::kMethod,
      .summary = "one segment whose basis is refreshed and whose coefficients are mapped along",
      .source = "Low-Rank KV Cache Subspaces, variant 2",
      .keys = kRotateKeys,
      .rules = kSubspaceRules,
      .example = "rotate:rk=16,rv=16,every=64",
      .size_keys = "rk|rv",
      .make = make_rotate,
      .needs_calibration = calibrated_by_words,
  };
}

MethodDeclaration oja_method() {
  return {
      .name = "oja",
      .kind = MethodKind::kMethod,
      .summary = "Oja's rule turns calibrated bases towards the tokens that receive attention",
      .source = "OjaKV (Zhu et al.), s5, Algorithm 1",
      .keys = kOjaKeys,
      .rules = kOjaRules,
      .example = "oja:ratio=0.6,store=int8",
      .size_keys = "rk|rv",
      .make = make_oja,
      .needs_calibration = always,
  };
}

MethodDeclaration spectral_method() {
  return {
      .name = "spectral",
      .kind = MethodKind::kMethod,
      .summary = "one SVD per head and block of tokens, int8 coefficients",
      .source = "Holographic Spectral Compression",
      .keys = kSpectralKeys,
      .rules = kSpectralRules,
      .example = "spectral:rk=16,rv=32,block=512",
      .size_keys = "rk|rv",
      .make = make_spectral,
      .needs_calibration = calibrated_by_words,
      .why_tokens_stay = why_coded_tokens_stay,
  };
}

}  // namespace kvspan
