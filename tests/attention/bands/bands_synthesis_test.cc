// SPDX-License-Identifier: Apache-2.0
// Attention reads B in f16: held against the same numbers rounded in double. Of one token, whose
// weight is 1 and is not rounded, attention gives back its value to f32.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "attention/bands/attend_bands.h"
#include "base/cpu_level.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "tests/cache/rounded_rows.h"

namespace kvspan {
namespace bands_synthesis_test {

constexpr std::size_t kHeads = 2, kQueryHeads = 6, kDim = 24, kSide = kHeads * kDim,
                      kAll = 2 * kSide;

// Keys before RoPE, so that their rows of B are read in full as well.
struct Problem {
  LayerShape layer;
  std::vector<float> b = std::vector<float>(kAll * kAll), key_mean = std::vector<float>(kSide),
                     value_mean = key_mean, steps = std::vector<float>(kAll),
                     ones = std::vector<float>(kAll, 1.0f);
  std::vector<std::uint8_t> bits = std::vector<std::uint8_t>(kAll, 0);
  std::shared_ptr<const BandsCode> code;

  // The first `stored` components have bits.
  Problem(std::size_t stored, Random& random) {
    layer.kv_heads = kHeads;
    layer.query_heads = kQueryHeads;
    layer.key_dim = layer.value_dim = kDim;
    layer.logit_scale = 0.25f;
    layer.rope.rotated_dims = kDim;
    for (std::size_t i = 0; i < kDim / 2; ++i) layer.rope.angles.push_back(std::pow(0.5, i));
    for (std::size_t j = 0; j < kAll; ++j) {
      const float size = std::exp2(8.0f * random.uniform() - 4.0f);
      for (std::size_t p = 0; p < kAll; ++p) b[j * kAll + p] = size * random.normal();
    }
    for (float& x : key_mean) x = random.normal();
    for (float& x : value_mean) x = random.normal();
    for (float& x : steps) x = 0.1f + random.uniform();
    for (std::size_t i = 0; i < stored; ++i) bits[i] = 3;
    BandsParts parts;
    parts.heads = kHeads;
    parts.key_dim = parts.value_dim = kDim;
    parts.before_rope = true;
    parts.rope = layer.rope;
    parts.key_mean = key_mean;
    parts.value_mean = value_mean;
    parts.synthesis = {b.data(), {kAll, kAll}};
    parts.bits = bits;
    parts.steps = steps;
    parts.sigma = parts.weights = ones;
    code = BandsCode::create(parts, nullptr).value();
  }
};

struct Attended {
  std::vector<float> out, lse;
};

Attended attend(const Problem& p, const BandsStore& store, const Queries& queries, int threads) {
  const std::size_t n = queries.positions.size();
  Attended got{std::vector<float>(n * kQueryHeads * kDim), std::vector<float>(n * kQueryHeads)};
  AttentionScratch scratch;
  ThreadPool pool(threads);
  pool.run([&](Team& team) {
    EXPECT_TRUE(attend_bands(p.layer, 0, store, store, {}, queries,
                             {got.out.data(), {n, kQueryHeads, kDim}},
                             {got.lse.data(), {n, kQueryHeads}}, false, scratch, team));
  });
  return got;
}

// A number of the token's row in double, and how much was summed up for it.
struct Number {
  double x, size;
};

class BandsSynthesis : public ::testing::TestWithParam<std::size_t> {};

TEST_P(BandsSynthesis, IsReadAsRoundedInDouble) {
  Random random(41);
  for (int trial = 0; trial < 8; ++trial) {
    const Problem p(GetParam(), random);
    const BandsCode& code = *p.code;
    const auto places = std::size_t(code.places());
    // One chunk or two; all tokens but the first are kept elsewhere. The first is at position 0,
    // where RoPE turns nothing.
    const int tiles = trial % 2 == 0 ? 1 : 40;
    BandsStore store(p.code, nullptr);
    std::vector<std::int8_t> codes(16 * places), gains(16);
    for (std::size_t i = 0; i < places; ++i) codes[i] = std::int8_t(int(random.below(8)) - 4);
    gains[0] = std::int8_t(int(random.below(20)) - 10);
    for (int tile = 0; tile < tiles; ++tile) {
      store.append(16 * tile, codes.data(), gains.data(), tile == 0 ? 0xfffe : 0xffff);
    }
    const std::vector<double> rounded = testing::rounded_rows(p.b, kAll, code.layout());
    const auto number = [&](std::size_t j) {
      const float mean = j < kSide ? p.key_mean[j] : p.value_mean[j - kSide];
      Number out{mean, std::abs(mean)};
      for (std::size_t i = 0; i < code.layout().stored(); ++i) {
        const std::size_t from = code.layout().order()[i];
        const double c = std::exp2(gains[0] / 8.0) * p.steps[from] * (codes[i] + 0.5);
        out.x += rounded[j * kAll + from] * c;
        out.size += std::abs(rounded[j * kAll + from] * c);
      }
      return out;
    };
    const std::size_t n = trial < 4 ? 1 : 30;
    std::vector<float> rows(n * kQueryHeads * kDim);
    for (float& x : rows) x = random.normal();
    std::vector<std::int32_t> positions(n);
    for (std::size_t i = 0; i < n; ++i) positions[i] = 16 * tiles + std::int32_t(i);
    const Queries queries{{rows.data(), {n, kQueryHeads, kDim}}, positions};
    // Each component takes a few products and sums, each off by 2^-24.
    const double off = double(places + 16) * 0x1p-23;
    for (const CpuLevel level : available_cpu_levels()) {
      ASSERT_TRUE(force_cpu_level(level));
      const Attended got = attend(p, store, queries, 1 + trial % 3);
      for (std::size_t at = 0; at < n * kQueryHeads; ++at) {
        const std::size_t head = at % kQueryHeads / (kQueryHeads / kHeads);
        Number logit{0.0, 0.0};
        for (std::size_t j = 0; j < kDim; ++j) {
          const Number value = number(kSide + head * kDim + j), key = number(head * kDim + j);
          ASSERT_NEAR(got.out[at * kDim + j], value.x, off * value.size) << name_of(level);
          const double q = 0.25 * double{rows[at * kDim + j]};
          logit.x += q * key.x;
          logit.size += std::abs(q) * key.size;
        }
        ASSERT_NEAR(got.lse[at], logit.x, off * logit.size) << name_of(level);
      }
    }
  }
  ASSERT_TRUE(force_cpu_level(available_cpu_levels().back()));
}

// Places of whole eights, with four more, and few.
INSTANTIATE_TEST_SUITE_P(Stored, BandsSynthesis, ::testing::Values(4, 64, 68, 96));

}  // namespace bands_synthesis_test
}  // namespace kvspan
