// SPDX-License-Identifier: Apache-2.0
// Attention over bands against rebuilding every row and plain softmax in double.
#include "attention/bands/attend_bands.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "attention/bands/bands_tokens.h"
#include "attention/certificate/certificate.h"
#include "base/cpu_level.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "cache/bands/bands_residuals.h"
#include "cache/rope.h"
#include "tests/attention/bands/random_bands.h"
#include "tests/attention/oracle.h"

namespace kvspan {
namespace {

using namespace bands_testing;

TEST(AttendBands, EqualsSoftmaxOverRebuiltRows) {
  Random random(21);
  for (int trial = 0; trial < 80; ++trial) {
    const bool joint = trial % 2 == 0;
    const std::int32_t anchor = std::array{0, 32, 64, -1}[std::size_t(trial / 2 % 4)];
    const auto tiles = std::int32_t(1 + random.below(trial % 5 == 0 ? 90 : 12));
    const auto n = std::int32_t(1 + random.below(trial % 9 == 0 ? 40 : 3));
    Problem p = random_problem(tiles, n, joint, anchor, random);
    if (trial % 7 == 3) p.layer.window = 40;
    if (trial % 7 == 5) p.layer.chunk = 48;
    for (std::int32_t tile = 0; trial % 3 == 1 && tile < tiles; ++tile) {
      if (random.below(3) == 0) p.some.push_back(tile);
    }
    if (trial % 5 == 2) p.layer.alibi.assign(std::size_t(p.layer.query_heads), 0.05f);
    if (trial % 5 == 2) p.layer.alibi[0] = 0.4f;
    const auto heads = std::size_t(p.layer.query_heads), d = std::size_t(p.layer.value_dim);
    std::vector<Attended> of_levels;
    for (const CpuLevel level : available_cpu_levels()) {
      ASSERT_TRUE(force_cpu_level(level));
      of_levels.push_back(attend(p));
    }
    Expected expected(p);
    for (std::size_t at = 0; at < std::size_t(n) * heads; ++at) {
      expected.attend(p, at / heads, at % heads);
      for (const Attended& got : of_levels) {
        if (!expected.sees) {
          EXPECT_EQ(got.lse[at], -std::numeric_limits<float>::infinity());
          continue;
        }
        // Queries, the matrix that moves them and what it gives in 8 bits each: a logit is off by
        // about 1/254 of |q| |c| / sqrt(places) for each; weights in 7 bits: 1/254 of the largest.
        // Both times the size of a value. Keys that are rebuilt are off by f32 alone: 1e-7 of some
        // hundred products whose sum is below 100.
        EXPECT_NEAR(got.lse[at], expected.lse, anchor < 0 ? 1e-3 : 0.08) << trial;
        for (std::size_t j = 0; j < d; ++j) {
          EXPECT_NEAR(got.out[at * d + j], expected.out[j], 0.04 * expected.spread) << trial;
        }
      }
    }
  }
}

// Where rows are read as they were coded, what is left is what attention rounds off.
TEST(AttendBands, CertificatesCoverWhatAttentionRoundsOff) {
  Random random(24);
  for (const std::int32_t anchor : {0, 32, 64, -1}) {
    std::vector<double> logits, ratios;
    for (int trial = 0; trial < 30; ++trial) {
      const auto tiles = std::int32_t(1 + random.below(12)), n = std::int32_t(1 + random.below(8));
      Problem p = random_problem(tiles, n, trial % 2 == 0, anchor, random, true);
      p.layer.logit_scale *= float(std::pow(4.0, trial % 3 - 1));
      const LayerShape& l = p.layer;
      const auto heads = std::size_t(l.query_heads), d = std::size_t(l.value_dim);
      const Attended got = attend(p);
      std::vector<Certificate> bounds(std::size_t(n) * heads);
      BandsTokens tokens({p.code, p.values_code}, nullptr, true);
      tokens.keys() = p.keys;
      if (tokens.values() != nullptr) *tokens.values() = p.values;
      const std::vector<const TokenStore*> stores = {&tokens};
      for (std::int32_t h = 0; h < l.kv_heads; ++h) {
        ASSERT_TRUE(certify(l, stores, queries_of(p), h, {bounds.data(), {std::size_t(n), heads}}));
      }
      Expected expected(p);
      expected.read_keys(p);
      for (std::size_t at = 0; at < bounds.size(); ++at) {
        expected.attend(p, at / heads, at % heads);
        double off = 0.0;
        for (std::size_t j = 0; j < d; ++j) {
          off += std::pow(double{got.out[at * d + j]} - expected.out[j], 2.0);
        }
        ASSERT_LE(std::sqrt(off), bounds[at].output) << anchor << ", trial " << trial;
        // The log of a sum of e^l is no more off than the l are.
        const double sum = std::abs(double{got.lse[at]} - expected.lse);
        ASSERT_LE(sum, bounds[at].logits) << anchor << ", trial " << trial;
        if (sum > 0.0) logits.push_back(bounds[at].logits / sum);
        if (off > 0.0) ratios.push_back(bounds[at].output / std::sqrt(off));
      }
    }
    std::sort(logits.begin(), logits.end());
    std::sort(ratios.begin(), ratios.end());
    std::printf("anchor %d: %zu rows; bound / error, least and median: logits %.1f %.1f, ", anchor,
                ratios.size(), logits.front(), logits[logits.size() / 2]);
    std::printf("output %.1f %.1f\n", ratios.front(), ratios[ratios.size() / 2]);
  }
}

// Beside other tokens of much larger weight, tokens count as the mean of values, their weights as
// they are; with norms for certificates, and beside tokens of little weight, all are summed.
TEST(AttendBands, TokensThatHardlyCountCountAsTheMean) {
  Random random(26);
  for (int trial = 0; trial < 12; ++trial) {
    const bool exact = trial % 3 == 0;
    const Problem p = random_problem(70, 2, trial % 2 == 0, 64, random, exact);
    const auto heads = std::size_t(p.layer.query_heads), d = std::size_t(p.layer.value_dim);
    const Attended alone = attend(p);
    // 2^-14.4 and 2^4.3 of the others' weights: 9 runs of tokens, below 2^-12 all together, or well
    // above it each.
    for (const float more : {10.0f, -3.0f}) {
      std::vector<float> others = alone.lse;
      for (float& x : others) x += more;
      const Attended got = attend(p, 1, others);
      const bool light = more > 0.0f && !exact;
      for (std::size_t at = 0; at < alone.lse.size(); ++at) {
        const double total = std::log1p(std::exp(double{more})) + double{alone.lse[at]};
        EXPECT_NEAR(got.lse[at], total, 1e-4);
        const double share = std::exp(double{alone.lse[at]} - total);
        const float* mean = p.values_code->value_mean(
            std::int32_t(at % heads / std::size_t(p.layer.query_heads / p.layer.kv_heads)));
        for (std::size_t j = 0; j < d; ++j) {
          const double from = light ? double{mean[j]} : double{alone.out[at * d + j]};
          // Scores are rounded alike in both; sums in f32, of numbers below 100.
          EXPECT_NEAR(got.out[at * d + j] / share, from, 1e-3) << trial << ", " << more;
        }
      }
    }
  }
}

TEST(AttendBands, AnyTeamGivesTheSameBits) {
  Random random(23);
  for (const std::int32_t anchor : {64, -1}) {
    for (const std::int32_t n : {2, 60}) {
      const Problem p = random_problem(100, n, true, anchor, random);
      const Attended one = attend(p), three = attend(p, 3);
      EXPECT_EQ(one.out, three.out) << anchor;
      EXPECT_EQ(one.lse, three.lse) << anchor;
    }
  }
}

}  // namespace
}  // namespace kvspan
