// SPDX-License-Identifier: Apache-2.0
// Spec section 4, line 2: attention in coefficient space equals reconstruct-then-attend in every
// domain; and lists that mix full-rank and coded segments behave as one softmax.
#include <gtest/gtest.h>

#include "base/cpu_level.h"
#include "tests/attention/coded_problem.h"

namespace kvspan {
namespace {

using testing::CodeChoice;
using testing::Data;
using testing::Piece;
using testing::Problem;

// The first six hold numbers of any size; the others end at 65504, of the coefficients or scales.
const char* const kCodecs[] = {"f32",
                               "bf16",
                               "int8:row,scale=f32",
                               "int8:tile=32x4,scale=f32",
                               "int4:column=16,asym,scale=f32",
                               "int2:tile=8,scale=f32",
                               "f16",
                               "q8_0",
                               "int4:group=8",
                               "int3:row",
                               "int8:tensor"};
constexpr std::uint32_t kAnySize = 6, kAll = 11;

void expect_same(const Problem& p, const SegmentList& list, const std::string& what) {
  const testing::Reread back = testing::reread(p, list);
  const testing::Exact exact = testing::exact_attention(back.problem, 4096);
  const auto d = std::size_t(p.layer.value_dim), dk = std::size_t(p.layer.key_dim);
  double max_v = 0.0;
  for (const float v : back.problem.values) max_v = std::max(max_v, double{std::abs(v)});
  for (const CpuLevel level : available_cpu_levels()) {
    ASSERT_TRUE(force_cpu_level(level));
    const testing::Attended got = testing::attend(p, list);
    for (std::size_t r = 0; r < exact.lse.size(); ++r) {
      double q = 0.0;
      for (std::size_t i = 0; i < dk; ++i) {
        q += double{p.queries[r * dk + i]} * p.queries[r * dk + i];
      }
      const double delta = back.key_slack * std::sqrt(q) * std::abs(p.layer.logit_scale);
      if (std::isinf(exact.lse[r])) {
        ASSERT_EQ(got.lse[r], -std::numeric_limits<float>::infinity()) << what;
      } else {
        ASSERT_NEAR(got.lse[r], exact.lse[r], exact.lse_bound[r] + delta) << what << " row " << r;
      }
      const double bound = exact.out_bound[r] + 2.0 * std::tanh(delta) * max_v + back.value_slack;
      for (std::size_t i = 0; i < d; ++i) {
        ASSERT_NEAR(got.out[r * d + i], exact.out[r * d + i], bound)
            << what << " at " << name_of(level) << " row " << r << " coordinate " << i;
      }
    }
  }
  ASSERT_TRUE(force_cpu_level(available_cpu_levels().back()));
}

LayerShape layer_of(int query_heads, int kv_heads, int key_dim, int value_dim) {
  LayerShape layer;
  layer.query_heads = query_heads;
  layer.kv_heads = kv_heads;
  layer.key_dim = key_dim;
  layer.value_dim = value_dim;
  layer.logit_scale = 1.0f / std::sqrt(static_cast<float>(key_dim));
  return layer;
}

// A random list: pieces of random lengths, each full rank or coded on one side or both, per head or
// joined, with random domains, ranks, codecs, means and metrics.
void random_case(std::uint64_t seed) {
  Random random(seed);
  const int dims[] = {8, 12, 16, 20, 32};
  const int kv_heads = 1 + int(random.below(3)), group = 1 + int(random.below(4));
  LayerShape layer =
      layer_of(kv_heads * group, kv_heads, dims[random.below(5)], dims[random.below(5)]);
  layer.rope = testing::rope_of(2 * int(random.below(std::uint32_t(layer.key_dim / 2) + 1)),
                                random.below(2) ? Rope::Pairs::kHalves : Rope::Pairs::kNeighbours,
                                random.below(2) ? 1.0f : 1.19f);
  if (random.below(3) == 0) layer.window = 1 + int(random.below(120));
  if (random.below(4) == 0) layer.soft_cap = 20.0f;
  const int n = random.below(2) ? 1 + int(random.below(3)) : 20 + int(random.below(40));
  const double scale = std::pow(10.0, -3.0 + 6.0 * random.uniform());
  layer.logit_scale = static_cast<float>(layer.logit_scale / scale);

  const auto ledger = std::make_shared<Ledger>();
  std::vector<Piece> pieces(1 + random.below(5));
  std::int32_t tokens = 0;
  for (Piece& piece : pieces) {
    piece.tokens = 1 + std::int32_t(random.below(90));
    tokens += piece.tokens;
    const auto choose = [&](bool keys, std::int32_t dim, auto& codes) {
      if (random.below(4) == 0) return;
      const bool joined = random.below(2) == 0;
      const Domain domains[] = {Domain::kPostRopeKey, Domain::kPreRopeKey, Domain::kAnchoredKey};
      for (int h = 0; h < kv_heads; h += joined ? kv_heads : 1) {
        CodeChoice choice;
        choice.domain = keys ? domains[random.below(3)] : Domain::kValue;
        choice.heads = joined ? kv_heads : 1;
        choice.rank = 1 + std::int32_t(random.below(std::uint32_t(choice.heads * dim)));
        choice.anchor_block = 1 + std::int32_t(random.below(70));
        choice.metric = random.below(2) == 0;
        choice.mean = random.below(2) ? 0.5 * scale : 0.0;
        choice.gamma = keys && random.below(4) == 0 ? 0.7f : 1.0f;
        choice.codec = kCodecs[random.below(scale > 1.0 ? kAnySize : kAll)];
        codes.push_back(testing::random_code(choice, dim, layer.rope, ledger, random));
      }
    };
    choose(true, layer.key_dim, piece.keys);
    choose(false, layer.value_dim, piece.values);
  }
  Problem p =
      testing::random_problem(layer, scale < 1.0 && random.below(2) ? Element::kF16 : Element::kF32,
                              tokens, std::min(n, tokens), seed);
  std::int32_t position = std::int32_t(random.below(5000));
  const bool gaps = random.below(3) == 0;
  for (auto& at : p.positions) at = position += 1 + (gaps ? std::int32_t(random.below(4)) : 0);
  p.query_positions.assign(p.positions.end() - std::ptrdiff_t(p.query_positions.size()),
                           p.positions.end());
  const auto data = Data(random.below(std::uint32_t(Data::kCount)));
  const auto width = std::size_t(kv_heads);
  const auto raw = testing::random_rows(data, std::size_t(tokens),
                                        width * std::size_t(layer.key_dim), scale, 0.3, random);
  p.values = testing::random_rows(data, std::size_t(tokens), width * std::size_t(layer.value_dim),
                                  scale, 0.3, random);
  testing::turn_keys(p, raw);
  const bool give_raw = random.below(2) == 0;
  const SegmentList list =
      testing::coded_list(p, give_raw ? raw : std::vector<float>{}, pieces, ledger);
  expect_same(p, list, "seed " + std::to_string(seed));
}

TEST(Spec4_02_CoefficientSpace, EqualsReconstructThenAttendForRandomMixes) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    random_case(seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvspan
