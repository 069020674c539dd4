// SPDX-License-Identifier: Apache-2.0
// received_attention against the definition, in double precision over rebuilt rows.
#include "attention/received.h"

#include <gtest/gtest.h>

#include "base/cpu_level.h"
#include "tests/attention/random_case.h"

namespace kvspan {
namespace {

using testing::Problem;

struct Received {
  std::vector<double> sums;   // [kv_heads, tokens]
  std::vector<double> bound;  // what f32 and the score's own error may change
};

// Weights from the definition. A computed score is off by delta (oracle.h; key_slack for coded
// rows), lse by its bound; a weight therefore by the factor e^(delta + lse error), its
// exponential's 2^-22, and the rounding of score - lse in base 2; a token's sum of n by n u.
Received exact_received(const Problem& p, const testing::Reread& back, std::size_t first_query) {
  const LayerShape& s = p.layer;
  const Problem& rows = back.problem;
  const auto tokens = rows.positions.size(), heads = std::size_t(s.kv_heads);
  const auto d = std::size_t(s.key_dim);
  const testing::Exact exact = testing::exact_attention(rows, 4096);
  const std::int32_t group = s.query_heads / s.kv_heads;
  Received result;
  result.sums.assign(heads * tokens, 0.0);
  result.bound.assign(heads * tokens, 0.0);
  for (std::size_t i = first_query; i < p.query_positions.size(); ++i) {
    for (std::int32_t h = 0; h < s.query_heads; ++h) {
      const std::size_t r = i * std::size_t(s.query_heads) + std::size_t(h);
      const float* q = p.queries.data() + r * d;
      double size = 0.0;
      for (std::size_t c = 0; c < d; ++c) size += double{q[c]} * q[c];
      const double delta = back.key_slack * std::sqrt(size) * std::abs(s.logit_scale);
      const double lse_error = exact.lse_bound[r] + delta;
      for (std::size_t t = 0; t < tokens; ++t) {
        if (!testing::sees(s, p.query_positions[i], rows.positions[t])) continue;
        const auto kv = std::size_t(h / group);
        const float* k = rows.keys.data() + (t * heads + kv) * d;
        double logit = 0.0;
        for (std::size_t c = 0; c < d; ++c) logit += double{q[c]} * k[c];
        logit *= double{s.logit_scale};
        if (s.soft_cap > 0.0f) logit = s.soft_cap * std::tanh(logit / s.soft_cap);
        logit += testing::alibi_of(s, h, p.query_positions[i], rows.positions[t]);
        const double weight = std::exp(logit - exact.lse[r]);
        const double rounding =
            4 * testing::kUnit * (std::abs(logit) + std::abs(exact.lse[r])) + 0x1p-21;
        const double n = double(p.query_positions.size()) * group;
        result.sums[kv * tokens + t] += weight;
        result.bound[kv * tokens + t] +=
            weight * (std::expm1(2.0 * lse_error + rounding) + n * testing::kUnit) + 0x1p-126;
      }
    }
  }
  return result;
}

std::vector<float> receive(const Problem& p, const SegmentList& list, std::int32_t first_query,
                           bool per_head, int threads) {
  const testing::Attended attended = testing::attend(p, list, threads);
  const auto tokens = std::size_t(list.tokens());
  const std::size_t rows = per_head ? std::size_t(p.layer.kv_heads) : 1;
  std::vector<float> received(rows * tokens, 1.0f);  // is added to
  AttentionScratch scratch;
  ThreadPool pool(threads);
  const HeadGroup group{0, &list};
  const TensorView<float, 2> out(received.data(), {rows, tokens});
  pool.run([&](Team& team) {
    (void)received_attention(
        p.layer, std::span(&group, 1), p.queries_view(),
        {attended.lse.data(), {p.query_positions.size(), std::size_t(p.layer.query_heads)}},
        first_query, std::span(&out, 1), scratch, team);
  });
  return received;
}

TEST(ReceivedAttention, IsTheSumOfFinalWeightsForRandomMixes) {
  for (std::uint64_t seed = 2001; seed <= 2080; ++seed) {
    const testing::RandomCase c = testing::random_case(seed, {});
    const Problem& p = c.problem;
    const testing::Reread back = testing::reread(p, c.list);
    const std::int32_t n = std::int32_t(p.query_positions.size());
    const std::int32_t first = seed % 3 == 0 ? 0 : seed % 3 == 1 ? n / 2 : n - 1;
    const Received exact = exact_received(p, back, std::size_t(first));
    const auto tokens = p.positions.size();
    for (const CpuLevel level : available_cpu_levels()) {
      ASSERT_TRUE(force_cpu_level(level));
      const std::vector<float> each = receive(p, c.list, first, true, 1);
      const std::vector<float> all = receive(p, c.list, first, false, 1);
      for (std::size_t t = 0; t < tokens; ++t) {
        double sum = 0.0, bound = 0.0;
        for (std::size_t h = 0; h < std::size_t(p.layer.kv_heads); ++h) {
          const std::size_t at = h * tokens + t;
          // Adding to what was there rounds the sum as often as tiles and heads add.
          const double rounding = 200 * testing::kUnit * (1.0 + exact.sums[at]);
          ASSERT_NEAR(each[at] - 1.0, exact.sums[at], exact.bound[at] + rounding)
              << "seed " << seed << " token " << t << " at " << name_of(level);
          sum += exact.sums[at];
          bound += exact.bound[at] + rounding;
        }
        ASSERT_NEAR(all[t] - 1.0, sum, bound) << "seed " << seed << " token " << t;
      }
    }
  }
  ASSERT_TRUE(force_cpu_level(available_cpu_levels().back()));
}

TEST(ReceivedAttention, BitsDoNotDependOnTheNumberOfThreads) {
  LayerShape layer;
  layer.query_heads = 6;
  layer.kv_heads = 2;
  layer.key_dim = layer.value_dim = 16;
  layer.logit_scale = 0.25f;
  for (const int queries : {1, 200}) {
    const Problem p = testing::random_problem(layer, Element::kF16, 3000, queries, 3);
    const SegmentList list = testing::list_of(p);
    for (const bool per_head : {false, true}) {
      const std::vector<float> one = receive(p, list, 0, per_head, 1);
      EXPECT_EQ(one, receive(p, list, 0, per_head, 2));
      EXPECT_EQ(one, receive(p, list, 0, per_head, 5));
    }
  }
}

}  // namespace
}  // namespace kvspan
