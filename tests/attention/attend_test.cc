// SPDX-License-Identifier: Apache-2.0
// attend_segments against plain double-precision attention, at every level the machine has.
#include "attention/attend.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/cpu_level.h"
#include "tests/attention/oracle.h"

namespace kvspan {
namespace {

using testing::Problem;
using testing::random_problem;

constexpr double kChain = 4096;  // no chunk of these problems is longer

LayerShape layer_of(int query_heads, int kv_heads, int key_dim, int value_dim) {
  LayerShape layer;
  layer.query_heads = query_heads;
  layer.kv_heads = kv_heads;
  layer.key_dim = key_dim;
  layer.value_dim = value_dim;
  layer.logit_scale = 1.0f / std::sqrt(static_cast<float>(key_dim));
  return layer;
}

void expect_exact(const Problem& p, const SegmentList& list, const std::string& what) {
  const testing::Exact exact = testing::exact_attention(p, kChain);
  const auto d = std::size_t(p.layer.value_dim);
  for (const CpuLevel level : available_cpu_levels()) {
    ASSERT_TRUE(force_cpu_level(level));
    const testing::Attended got = testing::attend(p, list);
    for (std::size_t r = 0; r < exact.lse.size(); ++r) {
      if (std::isinf(exact.lse[r])) {
        ASSERT_EQ(got.lse[r], -std::numeric_limits<float>::infinity()) << what;
      } else {
        ASSERT_NEAR(got.lse[r], exact.lse[r], exact.lse_bound[r])
            << what << " at " << name_of(level) << " row " << r;
      }
      for (std::size_t i = 0; i < d; ++i) {
        ASSERT_NEAR(got.out[r * d + i], exact.out[r * d + i], exact.out_bound[r])
            << what << " at " << name_of(level) << " row " << r << " coordinate " << i;
      }
    }
  }
  ASSERT_TRUE(force_cpu_level(available_cpu_levels().back()));
}

void expect_exact(const Problem& p, const std::string& what) {
  expect_exact(p, testing::list_of(p), what);
}

TEST(Attend, MatchesDoublePrecisionForAllHeadDimensions) {
  for (const int dim : {1, 8, 16, 20, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 192, 256}) {
    for (const Element element : {Element::kF16, Element::kF32}) {
      for (const int queries : {1, 40}) {
        const auto what = "dim " + std::to_string(dim) + " queries " + std::to_string(queries);
        expect_exact(random_problem(layer_of(6, 2, dim, dim), element, 77, queries, 1), what);
      }
    }
  }
}

TEST(Attend, MatchesDoublePrecisionForLengthsAroundVectorAndSegmentSizes) {
  for (const int tokens : {1,  2,  3,  4,   5,   7,   8,   9,   15,  16,  17,  31,  32,   33,
                           63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1025}) {
    const auto what = "tokens " + std::to_string(tokens);
    expect_exact(random_problem(layer_of(3, 1, 16, 16), Element::kF16, tokens, 1, 2), what);
    expect_exact(
        random_problem(layer_of(3, 1, 16, 16), Element::kF16, tokens, std::min(tokens, 7), 3),
        what);
  }
}

TEST(Attend, MatchesDoublePrecisionForAllGroupSizesAndRowCounts) {
  for (const int group : {1, 2, 3, 4, 5, 8, 16, 100}) {
    for (const int queries : {1, 2, 3, 4, 8, 16, 33}) {
      const auto what = "group " + std::to_string(group) + " queries " + std::to_string(queries);
      expect_exact(random_problem(layer_of(2 * group, 2, 24, 24), Element::kF16, 70, queries, 4),
                   what);
    }
  }
}

TEST(Attend, ValuesMayHaveAnotherDimensionThanKeys) {
  for (const int queries : {1, 50}) {
    expect_exact(random_problem(layer_of(6, 2, 64, 20), Element::kF16, 300, queries, 5), "64/20");
    expect_exact(random_problem(layer_of(6, 2, 8, 128), Element::kF32, 300, queries, 6), "8/128");
  }
}

TEST(Attend, SlidingWindowsSeeExactlyTheirTokens) {
  for (const int window : {1, 2, 3, 16, 63, 64, 100, 256, 599, 600, 10000}) {
    for (const int queries : {1, 3, 130}) {
      LayerShape layer = layer_of(4, 2, 16, 16);
      layer.window = window;
      const auto what = "window " + std::to_string(window) + " queries " + std::to_string(queries);
      expect_exact(random_problem(layer, Element::kF16, 600, queries, 7), what);
    }
  }
}

TEST(Attend, ChunksSeeExactlyTheirTokens) {
  for (const int chunk : {1, 2, 3, 16, 63, 64, 100, 256, 599, 600, 10000}) {
    for (const int queries : {1, 3, 130}) {
      LayerShape layer = layer_of(4, 2, 16, 16);
      layer.chunk = chunk;
      const auto what = "chunk " + std::to_string(chunk) + " queries " + std::to_string(queries);
      expect_exact(random_problem(layer, Element::kF16, 600, queries, 17), what);
      layer.window = 70;
      expect_exact(random_problem(layer, Element::kF16, 600, queries, 18), what + " and a window");
    }
  }
}

TEST(Attend, AlibiLowersScoresByDistance) {
  for (const int queries : {1, 3, 130}) {
    LayerShape layer = layer_of(4, 2, 16, 16);
    layer.alibi = {0.5f, 0.25f, 0.01f, 0.0f};
    expect_exact(random_problem(layer, Element::kF16, 600, queries, 19), "slopes");
    layer.soft_cap = 2.0f;
    expect_exact(random_problem(layer, Element::kF32, 600, queries, 20), "slopes after a cap");
    Problem p = random_problem(layer, Element::kF16, 400, queries, 21);
    for (auto& position : p.positions) position *= 3;
    for (auto& position : p.query_positions) position *= 3;
    expect_exact(p, "slopes over gaps");
  }
}

TEST(Attend, SoftCapIsAppliedToScores) {
  for (const float cap : {0.5f, 5.0f, 50.0f}) {
    for (const float scale : {0.01f, 1.0f, 100.0f}) {
      for (const int queries : {1, 50}) {
        LayerShape layer = layer_of(4, 2, 32, 32);
        layer.soft_cap = cap;
        layer.logit_scale = scale;
        expect_exact(random_problem(layer, Element::kF32, 200, queries, 8), "cap");
      }
    }
  }
}

TEST(Attend, LogitsUpToTenThousandNeitherOverflowNorVanish) {
  for (const int queries : {1, 50}) {
    LayerShape layer = layer_of(6, 2, 16, 16);
    Problem p = random_problem(layer, Element::kF32, 500, queries, 9);
    // Integer keys and queries of magnitude 1 keep the dot products exact in any order: +-16.
    for (float& x : p.keys) x = x > 0 ? 1.0f : -1.0f;
    for (float& x : p.queries) x = x > 0 ? 1.0f : -1.0f;
    p.layer.logit_scale = 1e4f / 16;
    expect_exact(p, "1e4");
    // All logits -1e4: weights are equal, nothing underflows.
    std::fill(p.keys.begin(), p.keys.end(), 1.0f);
    std::fill(p.queries.begin(), p.queries.end(), -1.0f);
    expect_exact(p, "-1e4");
  }
}

TEST(Attend, QueriesWithoutVisibleTokensGiveZerosAndAnEmptyState) {
  for (const int queries : {1, 40}) {
    Problem p = random_problem(layer_of(6, 2, 16, 16), Element::kF16, 50, queries, 10);
    for (auto& position : p.positions) position += 20;
    for (int i = 0; i < queries; ++i) p.query_positions[std::size_t(i)] = i;
    expect_exact(p, "some see nothing");
    p.positions.clear();
    p.keys.clear();
    p.values.clear();
    p.tokens = 0;
    expect_exact(p, "no tokens");
  }
}

TEST(Attend, PositionsMayHaveGaps) {
  for (const int window : {0, 90}) {
    for (const int queries : {1, 40}) {
      LayerShape layer = layer_of(6, 2, 16, 16);
      layer.window = window;
      Problem p = random_problem(layer, Element::kF16, 400, queries, 11);
      Random random(12);
      std::int32_t next = 3;
      for (auto& position : p.positions) position = next += 1 + std::int32_t(random.below(3));
      for (int i = 0; i < queries; ++i) p.query_positions[std::size_t(i)] = next - 2 * queries + i;
      expect_exact(p, "gaps");
    }
  }
}

TEST(Attend, AHundredThousandTokens) {
  expect_exact(random_problem(layer_of(3, 1, 16, 16), Element::kF16, 100000, 1, 13), "1e5");
}

TEST(Attend, BitsDoNotDependOnTheNumberOfThreads) {
  struct Case {
    int tokens, queries;
  };
  for (const Case c : {Case{1, 1}, Case{5000, 1}, Case{5000, 2}, Case{5000, 5}, Case{5000, 16},
                       Case{3000, 100}, Case{700, 700}}) {
    const Problem p =
        random_problem(layer_of(9, 3, 64, 64), Element::kF16, c.tokens, c.queries, 14);
    const SegmentList list = testing::list_of(p);
    const testing::Attended one = testing::attend(p, list, 1);
    for (const int threads : {2, 3, 5}) {
      const testing::Attended many = testing::attend(p, list, threads);
      EXPECT_EQ(0, std::memcmp(one.out.data(), many.out.data(), one.out.size() * sizeof(float)));
      EXPECT_EQ(0, std::memcmp(one.lse.data(), many.lse.data(), one.lse.size() * sizeof(float)));
    }
  }
}

TEST(Attend, PartsMergeByTheirLogSumExp) {
  // Softmax over all tokens from results over two halves.
  const Problem p = random_problem(layer_of(6, 2, 32, 32), Element::kF32, 400, 1, 15);
  const testing::Exact exact = testing::exact_attention(p, kChain);
  for (const int cut : {0, 1, 100, 399, 400}) {
    Problem a = p, b = p;
    const auto kd = std::size_t(cut) * 64;
    a.tokens = cut;
    b.tokens = 400 - cut;
    a.positions.resize(std::size_t(cut));
    b.positions.erase(b.positions.begin(), b.positions.begin() + cut);
    a.keys.resize(kd);
    a.values.resize(kd);
    b.keys.erase(b.keys.begin(), b.keys.begin() + std::ptrdiff_t(kd));
    b.values.erase(b.values.begin(), b.values.begin() + std::ptrdiff_t(kd));
    const testing::Attended x = testing::attend(a, testing::list_of(a));
    const testing::Attended y = testing::attend(b, testing::list_of(b));
    for (std::size_t r = 0; r < 6; ++r) {
      const double wx = std::exp(x.lse[r] - exact.lse[r]), wy = std::exp(y.lse[r] - exact.lse[r]);
      // The weights carry the absolute error of lse; values are below 5 in magnitude.
      const double bound = exact.out_bound[r] + 2 * 5 * 2 * exact.lse_bound[r];
      EXPECT_NEAR(wx + wy, 1.0, 4 * exact.lse_bound[r]);
      for (std::size_t i = 0; i < 32; ++i) {
        EXPECT_NEAR(wx * x.out[r * 32 + i] + wy * y.out[r * 32 + i], exact.out[r * 32 + i], bound);
      }
    }
  }
}

// Each KV head, or two of them, with tokens at positions of their own.
TEST(Attend, GroupsOfHeadsHaveListsOfTheirOwn) {
  for (const int queries : {1, 5, 40}) {
    const LayerShape layer = layer_of(8, 4, 16, 24);
    const LayerShape single = layer_of(2, 1, 16, 24), pair = layer_of(4, 2, 16, 24);
    Problem parts[] = {random_problem(single, Element::kF16, 700, queries, 1),
                       random_problem(pair, Element::kF32, 90, queries, 2),
                       random_problem(single, Element::kF16, 1300, queries, 3)};
    std::vector<SegmentList> lists;
    std::vector<HeadGroup> groups;
    Problem whole;
    whole.layer = layer;
    for (int i = 0; i < queries; ++i) whole.query_positions.push_back(4000 + 3 * i);
    std::int32_t head = 0, step = 3;
    for (Problem& part : parts) {
      for (auto& position : part.positions) position *= step;
      --step;
      part.query_positions = whole.query_positions;
      lists.push_back(testing::list_of(part));
    }
    for (std::size_t g = 0; g < 3; ++g) {
      groups.push_back({head, &lists[g]});
      head += parts[g].layer.kv_heads;
    }
    for (std::size_t i = 0; i < std::size_t(queries); ++i) {
      for (const Problem& part : parts) {
        const auto size = std::size_t(part.layer.query_heads * part.layer.key_dim);
        whole.queries.insert(whole.queries.end(), part.queries.begin() + std::ptrdiff_t(i * size),
                             part.queries.begin() + std::ptrdiff_t((i + 1) * size));
      }
    }
    for (const int threads : {1, 3}) {
      std::vector<float> out(std::size_t(queries) * 8 * 24, -77.0f), lse(std::size_t(queries) * 8);
      AttentionScratch scratch;
      ThreadPool pool(threads);
      pool.run([&](Team& team) {
        (void)attend_segments(layer, groups, whole.queries_view(),
                              {out.data(), {std::size_t(queries), 8, 24}},
                              {lse.data(), {std::size_t(queries), 8}}, scratch, team);
      });
      std::size_t first = 0;
      for (const Problem& part : parts) {
        const testing::Exact exact = testing::exact_attention(part, kChain);
        const auto heads = std::size_t(part.layer.query_heads);
        for (std::size_t i = 0; i < std::size_t(queries); ++i) {
          for (std::size_t h = 0; h < heads; ++h) {
            const std::size_t r = i * heads + h, at = i * 8 + first + h;
            ASSERT_NEAR(lse[at], exact.lse[r], exact.lse_bound[r]);
            for (std::size_t c = 0; c < 24; ++c) {
              ASSERT_NEAR(out[at * 24 + c], exact.out[r * 24 + c], exact.out_bound[r]);
            }
          }
        }
        first += heads;
      }
    }
  }
}

TEST(AttentionScratch, StaysWithinTheStatedBoundForAnyLength) {
  // One layer of 8 KV heads, 128 dimensions; the bound of attention/segments/plan.h written out.
  const LayerShape layer = layer_of(32, 8, 128, 128);
  const std::size_t partials = std::max(kMaxItems * 16, kMaxBlockItems * kBlockRows) * (128 + 2) * 4;
  const std::size_t work =
      4 * (std::size_t(kBlockRows) * (128 + 2 + 128 + 3 + kPanelTokens) + kPanelTokens * 256);
  for (const int tokens : {1, 1000, 9000}) {
    for (const int queries : {1, 4, 17, 200}) {
      if (queries > tokens) continue;
      SegmentList list({8, 128, 128, Element::kF16}, std::make_shared<Ledger>());
      std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
      for (int t = 0; t < tokens; ++t) positions[std::size_t(t)] = t;
      list.extend(positions);
      AttentionScratch scratch;
      const auto last = std::span(positions).last(std::size_t(queries));
      const HeadGroup group{0, &list};
      scratch.prepare(layer, std::span(&group, 1), last, 3);
      ASSERT_TRUE(scratch.ready());
      EXPECT_LE(scratch.bytes(), partials + 3 * (work + 64) + 128) << tokens << " " << queries;
    }
  }
}

}  // namespace
}  // namespace kvspan
