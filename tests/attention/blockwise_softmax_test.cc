// SPDX-License-Identifier: Apache-2.0
// Softmax over parts, merged by their log-sum-exp in any order, is the
// softmax over all tokens: any split, masks, logits up to 1e4.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/attention/random_case.h"

namespace kvspan {
namespace {

using testing::Problem;

// The tokens of p with the given indices, as a problem of its own.
Problem subset(const Problem& p, const std::vector<std::size_t>& tokens) {
  Problem part = p;
  const auto k = std::size_t(p.layer.kv_heads * p.layer.key_dim);
  const auto v = std::size_t(p.layer.kv_heads * p.layer.value_dim);
  part.tokens = std::int32_t(tokens.size());
  part.positions.clear();
  part.keys.clear();
  part.values.clear();
  for (const std::size_t t : tokens) {
    part.positions.push_back(p.positions[t]);
    part.keys.insert(part.keys.end(), p.keys.begin() + std::ptrdiff_t(t * k),
                     p.keys.begin() + std::ptrdiff_t((t + 1) * k));
    part.values.insert(part.values.end(), p.values.begin() + std::ptrdiff_t(t * v),
                       p.values.begin() + std::ptrdiff_t((t + 1) * v));
  }
  return part;
}

void check(std::uint64_t seed) {
  Random random(seed);
  LayerShape layer;
  layer.kv_heads = 1 + int(random.below(2));
  layer.query_heads = layer.kv_heads * (1 + int(random.below(4)));
  layer.key_dim = 8 << random.below(3);
  layer.value_dim = 4 + 4 * int(random.below(5));
  if (random.below(2)) layer.window = 1 + int(random.below(100));
  if (seed % 3 == 0) layer.chunk = 1 + int(seed % 70);
  if (seed % 4 == 0) layer.alibi.assign(std::size_t(layer.query_heads), 0.1f);
  const int tokens = 2 + int(random.below(200)), n = random.below(2) ? 2 : 20;
  Problem p = testing::random_problem(layer, Element::kF32, tokens, std::min(n, tokens), seed);
  // Logits of size up to 1e4, of either sign.
  const double size = std::pow(10.0, -1.0 + 5.0 * random.uniform());
  p.layer.logit_scale = static_cast<float>(size / (3.0 * std::sqrt(double(layer.key_dim))));
  const double scale = std::pow(10.0, -3.0 + 6.0 * random.uniform());
  for (float& x : p.values) x *= static_cast<float>(scale);

  // Every token goes to one of the parts, whatever its place.
  const std::size_t parts = 1 + random.below(6);
  std::vector<std::vector<std::size_t>> tokens_of(parts);
  for (std::size_t t = 0; t < std::size_t(tokens); ++t) {
    tokens_of[random.below(std::uint32_t(parts))].push_back(t);
  }
  const testing::Exact whole = testing::exact_attention(p, 4096);
  const auto rows = whole.lse.size(), d = std::size_t(layer.value_dim);
  std::vector<double> lse(rows, -std::numeric_limits<double>::infinity()), out(rows * d, 0.0);
  std::vector<double> part_bound(rows, 0.0), lse_bound(rows, 0.0);
  std::vector<std::size_t> order(parts);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = parts; i > 1; --i) {
    std::swap(order[i - 1], order[random.below(std::uint32_t(i))]);
  }
  for (const std::size_t i : order) {
    const Problem part = subset(p, tokens_of[i]);
    const testing::Exact exact = testing::exact_attention(part, 4096);
    const testing::Attended got = testing::attend(part, testing::list_of(part));
    for (std::size_t r = 0; r < rows; ++r) {
      if (std::isinf(got.lse[r])) continue;
      part_bound[r] = std::max(part_bound[r], exact.out_bound[r]);
      lse_bound[r] = std::max(lse_bound[r], exact.lse_bound[r]);
      const double max = std::max(lse[r], double{got.lse[r]});
      const double own = std::exp(lse[r] - max), other = std::exp(double{got.lse[r]} - max);
      for (std::size_t c = 0; c < d; ++c) {
        out[r * d + c] =
            (own * out[r * d + c] + other * double{got.out[r * d + c]}) / (own + other);
      }
      lse[r] = max + std::log(own + other);
    }
  }
  double max_v = 0.0;
  for (const float v : p.values) max_v = std::max(max_v, double{std::abs(v)});
  for (std::size_t r = 0; r < rows; ++r) {
    if (std::isinf(whole.lse[r])) {
      ASSERT_TRUE(std::isinf(lse[r])) << "seed " << seed;
      continue;
    }
    ASSERT_NEAR(lse[r], whole.lse[r], lse_bound[r] + 1e-12 * std::abs(lse[r])) << "seed " << seed;
    // The parts' log-sum-exps are logits of the merge; line 4 says what their errors do.
    const double bound =
        part_bound[r] + 2.0 * std::tanh(lse_bound[r] / 2.0) * max_v + 1e-12 * max_v;
    for (std::size_t c = 0; c < d; ++c) {
      ASSERT_NEAR(out[r * d + c], whole.out[r * d + c], bound) << "seed " << seed << " row " << r;
    }
  }
}

TEST(BlockwiseSoftmax, PartsMergeInAnyOrderToTheSoftmaxOverAll) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    check(seed);
    if (HasFatalFailure()) return;
  }
}

TEST(BlockwiseSoftmax, MixedListsGiveTheSameBitsForAnyNumberOfThreads) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const testing::RandomCase c = testing::random_case(seed, {.piece_tokens = 700, .pieces = 4});
    const testing::Attended one = testing::attend(c.problem, c.list, 1);
    for (const int threads : {2, 3}) {
      const testing::Attended more = testing::attend(c.problem, c.list, threads);
      ASSERT_EQ(0, std::memcmp(one.out.data(), more.out.data(), one.out.size() * sizeof(float)));
      ASSERT_EQ(0, std::memcmp(one.lse.data(), more.lse.data(), one.lse.size() * sizeof(float)));
    }
  }
}

}  // namespace
}  // namespace kvspan
