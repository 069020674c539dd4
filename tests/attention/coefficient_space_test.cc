// SPDX-License-Identifier: Apache-2.0
// Attention in coefficient space equals reconstruct-then-attend in every
// domain; and lists that mix full-rank and coded segments behave as one softmax.
#include <gtest/gtest.h>

#include "base/cpu_level.h"
#include "tests/attention/random_case.h"
#include "tests/base/sweep.h"

namespace kvspan {
namespace {

using testing::Problem;

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

void random_case(std::uint64_t seed) {
  const testing::RandomCase c = testing::random_case(seed, {});
  expect_same(c.problem, c.list, "seed " + std::to_string(seed));
}

TEST(CoefficientSpace, EqualsReconstructThenAttendForRandomMixes) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    random_case(seed);
    if (HasFatalFailure()) return;
  }
}

// Segments of `unit` tokens that all share one code per side and head.
struct RunCase {
  std::shared_ptr<Ledger> ledger = std::make_shared<Ledger>();
  Problem problem;
  std::vector<testing::Piece> pieces;
  SegmentList list{{1, 8, 8, Element::kF16}, nullptr};

  RunCase(const LayerShape& layer, std::int32_t tokens, std::int32_t queries, std::int32_t unit,
          testing::CodeChoice keys, testing::CodeChoice values, bool gaps) {
    Random random(17);
    problem = testing::random_problem(layer, Element::kF32, tokens, queries, 18);
    if (gaps) {
      for (std::size_t t = 0; t < problem.positions.size(); ++t) {
        problem.positions[t] = std::int32_t(3 * t + t % 3);
      }
      const std::int32_t shift = problem.positions.back() - problem.query_positions.back();
      for (auto& position : problem.query_positions) position += shift;
    }
    testing::Piece piece{unit, {}, {}};
    for (std::int32_t h = 0; h < layer.kv_heads; h += keys.heads) {
      piece.keys.push_back(testing::random_code(keys, layer.key_dim, layer.rope, ledger, random));
    }
    for (std::int32_t h = 0; h < layer.kv_heads; h += values.heads) {
      piece.values.push_back(
          testing::random_code(values, layer.value_dim, layer.rope, ledger, random));
    }
    for (std::int32_t t = 0; t < tokens; t += unit) {
      piece.tokens = std::min(unit, tokens - t);
      pieces.push_back(piece);
    }
    list = testing::coded_list(problem, pieces, ledger);
  }
};

LayerShape run_layer(std::int32_t window) {
  LayerShape layer;
  layer.query_heads = 6;
  layer.kv_heads = 2;
  layer.key_dim = layer.value_dim = 32;
  layer.rope = testing::test_rope(32, Rope::Pairs::kHalves, 1.0f);
  layer.window = window;
  layer.logit_scale = 0.2f;
  return layer;
}

constexpr Domain kKeyDomains[] = {Domain::kPostRopeKey, Domain::kPreRopeKey, Domain::kAnchoredKey};

TEST(CoefficientSpace, HoldsForSeriesOfSegmentsOfAnyLength) {
  for (const Domain domain : kKeyDomains) {
    for (const std::int32_t unit : {1, 7, 64, 100}) {
      for (const std::int32_t queries : {1, 30}) {
        for (const std::int32_t window : {0, 150}) {
          const RunCase c(run_layer(window), 333, queries, unit,
                          {.domain = domain, .rank = 16, .anchor_block = 48, .mean = 0.5},
                          {.heads = 2, .rank = 24, .mean = 0.3}, unit == 7);
          expect_same(c.problem, c.list, "unit " + std::to_string(unit));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(CoefficientSpace, HoldsForAHundredThousandTokens) {
  for (const char* codec : {"f16", "int8:row"}) {
    const RunCase c(run_layer(0), std::int32_t(testing::sweep(100000)), 1, 1000,
                    {.domain = Domain::kPostRopeKey, .rank = 8, .codec = codec},
                    {.rank = 16, .codec = codec}, false);
    expect_same(c.problem, c.list, codec);
    if (HasFatalFailure()) return;
  }
}

TEST(CoefficientSpace, BitsOfSeriesDoNotDependOnTheNumberOfThreads) {
  for (const Domain domain : kKeyDomains) {
    for (const char* codec : {"f16", "int8:row"}) {
      for (const std::int32_t queries : {1, 40}) {
        const RunCase c(run_layer(0), 1700, queries, 64,
                        {.domain = domain, .rank = 16, .mean = 0.5, .codec = codec},
                        {.rank = 16, .codec = codec}, false);
        const testing::Attended one = testing::attend(c.problem, c.list, 1);
        for (const int threads : {2, 5}) {
          const testing::Attended many = testing::attend(c.problem, c.list, threads);
          EXPECT_EQ(one.out, many.out);
          EXPECT_EQ(one.lse, many.lse);
        }
      }
    }
  }
}

TEST(CoefficientSpace, WorkingMemoryDoesNotGrowWithTheNumberOfSegments) {
  for (const std::int32_t queries : {1, 40}) {
    std::size_t floats = 0;
    for (const std::int32_t tokens : {64, 1700}) {
      const RunCase c(run_layer(0), tokens, queries, 64,
                      {.domain = Domain::kAnchoredKey, .rank = 16, .mean = 0.5}, {.rank = 24},
                      false);
      const HeadGroup group{0, &c.list};
      const AttentionPlan plan =
          plan_attention(c.problem.layer, std::span(&group, 1), c.problem.query_positions);
      if (floats == 0) floats = plan.work_floats();
      EXPECT_EQ(plan.work_floats(), floats);
    }
  }
}

}  // namespace
}  // namespace kvspan
