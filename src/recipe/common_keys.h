// SPDX-License-Identifier: Apache-2.0
// Keys that several methods share, so that one name means one thing everywhere, and the joining of
// lists of them at compile time.
#pragma once

#include <array>
#include <cstddef>

#include "recipe/declaration.h"

namespace kvspan::detail {

template <class T, std::size_t... N>
constexpr auto join(const std::array<T, N>&... lists) {
  std::array<T, (N + ...)> all{};
  std::size_t at = 0;
  const auto add = [&](const auto& list) {
    for (const T& item : list) all[at++] = item;
  };
  (add(lists), ...);
  return all;
}

constexpr KeyDeclaration word(std::string_view name, std::string_view default_text,
                              std::string_view words, std::string_view summary) {
  return {name, ValueKind::kWord, default_text, summary, words, 0.0, 0.0, 1, {}};
}
constexpr KeyDeclaration count(std::string_view name, std::string_view default_text, double min,
                               double max, std::string_view summary, std::int64_t multiple = 1) {
  return {name, ValueKind::kCount, default_text, summary, {}, min, max, multiple, {}};
}
constexpr KeyDeclaration choice(std::string_view name, std::string_view default_text,
                                std::string_view choices, std::string_view summary) {
  return {name, ValueKind::kCount, default_text, summary, {}, 0.0, 0.0, 1, choices};
}
constexpr KeyDeclaration number(std::string_view name, std::string_view default_text, double min,
                                double max, std::string_view summary, std::string_view words = {}) {
  return {name, ValueKind::kNumber, default_text, summary, words, min, max, 1, {}};
}
constexpr KeyDeclaration share(std::string_view name, std::string_view default_text, double min,
                               double max, std::string_view summary) {
  return {name, ValueKind::kShare, default_text, summary, {}, min, max, 1, {}};
}
constexpr KeyDeclaration of_kind(ValueKind kind, std::string_view name,
                                 std::string_view default_text, std::string_view summary) {
  return {name, kind, default_text, summary, {}, 0.0, 0.0, 1, {}};
}

constexpr double kMaxTokens = 1 << 24;

constexpr KeyDeclaration sink_key(std::string_view default_text) {
  return count("sink", default_text, 0, kMaxTokens, "first tokens that stay full rank");
}
constexpr KeyDeclaration recent_key(std::string_view default_text) {
  return count("recent", default_text, 0, kMaxTokens, "last tokens that stay full rank");
}
constexpr KeyDeclaration kCertify =
    word("certify", "off", "off|on", "keep residual norms and bound the error of every step");
constexpr KeyDeclaration kFullStore =
    word("store", "f16", "f16|f32", "how full-rank rows are stored");
constexpr KeyDeclaration kRope =
    word("rope", "post", "post|pre|anchor",
         "which key is coded: after RoPE, before it (turned when read), or turned back to the "
         "middle of its block");
constexpr std::string_view kAnchorSummary =
    "tokens of a block whose keys share one anchor (rope=anchor)";
constexpr KeyDeclaration kAnchor = count("anchor", "64", 16, 4096, kAnchorSummary, 16);

// Ranks of the methods that keep the leading directions.
constexpr std::array<KeyDeclaration, 5> rank_keys(std::string_view rk, std::string_view rv,
                                                  std::string_view ranks) {
  return {of_kind(ValueKind::kRank, "rk", rk, "key directions kept; full: keys are not coded"),
          of_kind(ValueKind::kRank, "rv", rv, "value directions kept; full: values are not coded"),
          number("energy", "", 0.01, 1.0,
                 "instead of rk and rv: as many directions as hold this share of the energy"),
          number("ratio", "", 0.01, 1.0, "instead of rk and rv: (rk+rv)/(2d)"),
          word("ranks", "fixed", ranks,
               "fixed: the same for every head; table: rk and rv are averages that the "
               "calibration spreads over layers and heads")};
}

// What all methods with learned directions share beside their ranks.
constexpr std::array<KeyDeclaration, 9> subspace_keys(std::string_view store, std::string_view sink,
                                                      std::string_view recent) {
  return {word("store", store, "f16|f32|bf16|int8|int4", "how coefficients are stored"),
          sink_key(sink),
          recent_key(recent),
          kRope,
          kAnchor,
          word("share", "head", "head|group|layer",
               "KV heads that share one basis: each its own, `heads` neighbours, all of the layer"),
          count("heads", "2", 2, 1024, "KV heads of a group (share=group)"),
          number("gamma", "1", 0.01, 100.0,
                 "factor of the logits of coded tokens; sqrt: sqrt(r/d), fit: least squares on "
                 "the calibration",
                 "sqrt|fit"),
          kCertify};
}

constexpr std::string_view kRanksReason = "each of them sets the ranks on its own";
constexpr std::array<KeyRule, 8> kSubspaceRules{{
    {KeyRule::Kind::kExcludes, "energy", "ratio", {}, {}, kRanksReason},
    {KeyRule::Kind::kExcludes, "energy", "rk", "full", {}, kRanksReason},
    {KeyRule::Kind::kExcludes, "energy", "rv", "full", {}, kRanksReason},
    {KeyRule::Kind::kExcludes, "ratio", "rk", {}, {}, kRanksReason},
    {KeyRule::Kind::kExcludes, "ratio", "rv", {}, {}, kRanksReason},
    {KeyRule::Kind::kOnlyWith,
     "energy",
     "ranks",
     "fixed",
     {},
     "an energy threshold already gives every head its own ranks"},
    {KeyRule::Kind::kOnlyWith, "anchor", "rope", "anchor", {}, "nothing else has an anchor"},
    {KeyRule::Kind::kOnlyWith,
     "heads",
     "share",
     "group",
     {},
     "a head alone and a whole layer need no number"},
}};

}  // namespace kvspan::detail
