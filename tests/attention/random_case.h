// SPDX-License-Identifier: Apache-2.0
// Random lists that mix full-rank and coded segments: pieces of random lengths, coded on neither
// side, one or both, per head or joined, with random domains, ranks, codecs, means, metrics, masks,
// scales from 1e-3 to 1e3 and kinds of data.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/attention/coded_problem.h"

namespace kvspan::testing {

// The first six hold numbers of any size; the others end at 65504, of coefficients or scales.
inline const char* const kCodecs[] = {"f32",
                                      "bf16",
                                      "int8:row,scale=f32",
                                      "int8:tile=32x4,scale=f32",
                                      "int4:column=16,asym,scale=f32",
                                      "int2:tile=8,scale=f32",
                                      "f16",
                                      "q8_0",
                                      "q4_0",
                                      "int4:group=8",
                                      "int3:row",
                                      "int8:tensor"};
inline constexpr std::uint32_t kAnySizeCodecs = 6, kCodecCount = 12;

struct CaseLimits {
  std::int32_t piece_tokens = 90;
  std::uint32_t pieces = 5;
  std::int32_t queries = 0;  // 0: random, few or many
};

struct RandomCase {
  std::shared_ptr<Ledger> ledger;
  Problem problem;
  SegmentList list;
};

inline RandomCase random_case(std::uint64_t seed, const CaseLimits& limits) {
  Random random(seed);
  const int dims[] = {8, 12, 16, 20, 32};
  LayerShape layer;
  layer.kv_heads = 1 + int(random.below(3));
  layer.query_heads = layer.kv_heads * (1 + int(random.below(4)));
  layer.key_dim = dims[random.below(5)];
  layer.value_dim = dims[random.below(5)];
  layer.rope = test_rope(2 * int(random.below(std::uint32_t(layer.key_dim / 2) + 1)),
                       random.below(2) ? Rope::Pairs::kHalves : Rope::Pairs::kNeighbours,
                       random.below(2) ? 1.0f : 1.19f);
  if (random.below(3) == 0) layer.window = 1 + int(random.below(120));
  if (random.below(4) == 0) layer.soft_cap = 20.0f;
  if (seed % 5 == 1) layer.chunk = 1 + std::int32_t(seed * 13 % 90);
  for (std::int32_t h = 0; h < layer.query_heads && seed % 7 == 2; ++h) {
    layer.alibi.push_back(0.5f / float(1 << h));
  }
  const int n = limits.queries > 0 ? limits.queries
                : random.below(2)  ? 1 + int(random.below(3))
                                   : 20 + int(random.below(40));
  const double scale = std::pow(10.0, -3.0 + 6.0 * random.uniform());
  layer.logit_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(layer.key_dim)) / scale);

  const auto ledger = std::make_shared<Ledger>();
  std::vector<Piece> pieces(1 + random.below(limits.pieces));
  std::int32_t tokens = 0;
  const Piece* previous = nullptr;
  for (Piece& piece : pieces) {
    piece.tokens = 1 + std::int32_t(random.below(std::uint32_t(limits.piece_tokens)));
    tokens += piece.tokens;
    const auto choose = [&](bool keys, std::int32_t dim, auto& codes) {
      if (random.below(4) == 0) return;
      const bool joined = random.below(2) == 0;
      const Domain domains[] = {Domain::kPostRopeKey, Domain::kPreRopeKey, Domain::kAnchoredKey};
      for (int h = 0; h < layer.kv_heads; h += joined ? layer.kv_heads : 1) {
        CodeChoice choice;
        choice.domain = keys ? domains[random.below(3)] : Domain::kValue;
        choice.heads = joined ? layer.kv_heads : 1;
        choice.rank = 1 + std::int32_t(random.below(std::uint32_t(choice.heads * dim)));
        // Half of the ranks are multiples of 8: those of f32 and f16 are read in place.
        if (random.below(2) && choice.rank >= 8) choice.rank -= choice.rank % 8;
        choice.anchor_block = 1 + std::int32_t(random.below(70));
        choice.metric = random.below(2) == 0;
        choice.mean = random.below(2) ? 0.5 * scale : 0.0;
        choice.gamma = keys && random.below(4) == 0 ? 0.7f : 1.0f;
        choice.codec = kCodecs[random.below(scale > 1.0 ? kAnySizeCodecs : kCodecCount)];
        codes.push_back(random_code(choice, dim, layer.rope, ledger, random));
      }
    };
    // Half of the time a side goes on with the codes of the piece before: a series.
    const bool again = previous != nullptr && random.below(2) == 0;
    if (again) piece = {piece.tokens, previous->keys, previous->values};
    if (!again || random.below(4) == 0) {
      piece.keys.clear();
      choose(true, layer.key_dim, piece.keys);
    }
    if (!again || random.below(4) == 0) {
      piece.values.clear();
      choose(false, layer.value_dim, piece.values);
    }
    previous = &piece;
  }
  const Element element = scale < 1.0 && random.below(2) ? Element::kF16 : Element::kF32;
  Problem p = random_problem(layer, element, tokens, n, seed);
  std::int32_t position = std::int32_t(random.below(5000));
  const bool gaps = random.below(3) == 0;
  for (auto& at : p.positions) at = position += 1 + (gaps ? std::int32_t(random.below(4)) : 0);
  // Queries at the last tokens; when there are more queries than tokens, the rest come after.
  const auto held = p.positions.size(), asked = p.query_positions.size();
  for (std::size_t i = 0; i < asked; ++i) {
    const std::size_t token = i + (asked < held ? held - asked : 0);
    p.query_positions[i] =
        token < held ? p.positions[token] : p.positions.back() + std::int32_t(token - held) + 1;
  }
  const auto data = Data(random.below(std::uint32_t(Data::kCount)));
  const auto heads = std::size_t(layer.kv_heads);
  const auto raw = random_rows(data, std::size_t(tokens), heads * std::size_t(layer.key_dim), scale,
                               0.3, random);
  p.values = random_rows(data, std::size_t(tokens), heads * std::size_t(layer.value_dim), scale,
                         0.3, random);
  turn_keys(p, raw);
  SegmentList list = coded_list(p, pieces, ledger);
  return {ledger, std::move(p), std::move(list)};
}

// What a cache holds that codes nothing: rows as they came where `list` codes them, as they are
// stored where it does not.
inline Problem shadow(const Problem& p, const SegmentList& list) {
  const Problem back = reread(p, list).problem;
  Problem out = p;
  out.element = Element::kF32;
  std::size_t at_key = 0, at_value = 0;
  for (const Segment& segment : list.segments()) {
    const auto keys = std::size_t(segment.tokens() * p.layer.kv_heads * p.layer.key_dim);
    const auto values = std::size_t(segment.tokens() * p.layer.kv_heads * p.layer.value_dim);
    if (!segment.coded_keys) {
      std::copy_n(back.keys.data() + at_key, keys, out.keys.data() + at_key);
    }
    if (!segment.coded_values) {
      std::copy_n(back.values.data() + at_value, values, out.values.data() + at_value);
    }
    at_key += keys;
    at_value += values;
  }
  return out;
}

}  // namespace kvspan::testing
