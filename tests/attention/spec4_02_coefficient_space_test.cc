// SPDX-License-Identifier: Apache-2.0
// Spec section 4, line 2: attention in coefficient space equals reconstruct-then-attend in every
// domain; and lists that mix full-rank and coded segments behave as one softmax.
#include <gtest/gtest.h>

#include "base/cpu_level.h"
#include "tests/attention/random_case.h"

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

TEST(Spec4_02_CoefficientSpace, EqualsReconstructThenAttendForRandomMixes) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    random_case(seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvspan
