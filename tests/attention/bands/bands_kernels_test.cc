// SPDX-License-Identifier: Apache-2.0
// The integer kernels of bands at every level of this processor against the plain loops and against
// double.
#include "attention/bands/kernels/bands_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "attention/kernels/kernels.h"
#include "base/random.h"
#include "cache/bands/anchored_means.h"

namespace kvspan {
namespace {

// Of the levels of this processor, the plain loops first.
std::vector<const BandsAttentionKernels*> kernels_of_all_levels() {
  std::vector<const BandsAttentionKernels*> all;
  for (const CpuLevel level : available_cpu_levels()) {
    all.push_back(&bands_attention_kernels(level));
  }
  return all;
}

// Factors are powers of two and sums stay below 2^23, so that every order of them gives the same
// bits.
TEST(BandsKernels, KernelsOfEveryLevelGiveTheSameSums) {
  Random random(22);
  const BandsAttentionKernels& plain = detail::kBandsAttentionRef;
  const auto power = [&] { return std::ldexp(1.0f, -int(random.below(3))); };
  for (const std::int32_t quads : {1, 3, 4, 7, 72}) {
    std::vector<BandsCode::ScaleRange> ranges;
    for (std::int32_t q = 0, n = 0; q < quads; q += n) {
      n = std::min(quads - q, 1 + std::int32_t(random.below(30)));
      // A second digit of the first quads.
      if (random.below(2) == 0) ranges.push_back({q, 1 + std::int32_t(random.below(std::uint32_t(std::min(n, 4))))});
      ranges.push_back({q, n});
    }
    ASSERT_LE(ranges.size(), std::size_t(kBandScales));
    std::vector<BandsCode::ScaleRange> one = {{0, quads}};
    const std::vector<BandsCode::ScaleRange> small_one = {
        {0, quads, true}};  // 288 * 100 * 127 < 2^22
    for (std::int32_t rows = 1; rows <= 37; rows += rows < 19 ? 1 : 6) {
      const auto places = std::size_t(quads) * 4, n = std::size_t(rows);
      std::vector<std::int8_t> codes(places * kBandsStretchTokens + 960);
      // Rows after the last may be read, too.
      std::vector<std::int8_t> queries((n + 15) * places), weights((n + 15) * kBandsStretchTokens);
      for (auto& x : codes) x = std::int8_t(int(random.below(256)) - 128);
      for (auto& x : queries) x = std::int8_t(int(random.below(255)) - 127);
      for (auto& x : weights) x = std::int8_t(random.below(128));
      std::vector<float> scales(n * kBandScales), offsets(n + 64), kept(n), factors(64);
      for (auto* some : {&scales, &offsets, &kept, &factors}) {
        for (float& x : *some) x = power();
      }
      const auto same = [&](const std::vector<float>& a, const auto& call) {
        std::vector<float> c = a;
        call(plain, c.data());
        for (const CpuLevel level : available_cpu_levels()) {
          const BandsAttentionKernels& kernels = bands_attention_kernels(level);
          for (const bool shaped : {false, true}) {
            std::optional<BandsProducts> products;
            if (shaped) products.emplace(kernels, rows);
            std::vector<float> b = a;
            call(kernels, b.data());
            EXPECT_EQ(b, c) << name_of(level) << (shaped ? ", shaped" : "");
          }
        }
      };
      // Rows of queries as kernels take them, each range with zeros after it.
      const auto by_ranges = [&](const std::vector<BandsCode::ScaleRange>& some) {
        std::vector<std::int8_t> all;
        for (std::size_t r = 0; r < n; ++r) {
          for (const BandsCode::ScaleRange& range : some) {
            const auto from = queries.begin() + std::ptrdiff_t(r * places) + 4 * range.first_quad;
            all.insert(all.end(), from, from + 4 * range.quads);
            all.resize(all.size() + std::size_t(query_bytes(range) - 4 * range.quads));
          }
        }
        return all;
      };
      const auto asked_of = [&](const std::vector<std::int8_t>& all) {
        return BandsQueries{all.data(), std::int32_t(all.size() / n), scales.data(), offsets.data(),
                            rows};
      };
      using Kernels = const BandsAttentionKernels&;
      for (const auto* some : {&ranges, &one}) {
        const std::vector<std::int8_t> all = by_ranges(*some);
        for (const std::int32_t tiles : {1, 3, 4}) {
          const std::int32_t stride = 16 * tiles + 4;
          same(std::vector<float>(n * std::size_t(stride), 3.0f), [&](Kernels kernels, float* to) {
            kernels.score(codes.data(), tiles, *some, NarrowQuads{}, asked_of(all),
                          {factors.data(), offsets.data(), 0, to, stride});
          });
        }
      }
      std::vector<std::int8_t> small = codes;
      for (auto& x : small) x = std::clamp<std::int8_t>(x, -100, 100);
      const std::vector<std::int8_t> in_one = by_ranges(one);
      same(std::vector<float>(n * 20, 3.0f), [&](Kernels kernels, float* to) {
        kernels.score(small.data(), 1, small_one, NarrowQuads{}, asked_of(in_one),
                      {factors.data(), offsets.data(), 0, to, 20});
      });
      // Codes as large as they may be, all with the sign of the first query, so that sums of 16 bits come to their
      // limits.
      NarrowQuads narrow;
      for (std::size_t k = 0; k < NarrowQuads::kMost.size(); ++k) {
        const std::int32_t before = k == 0 ? 0 : narrow.first[k - 1];
        narrow.first[k] = before + std::int32_t(random.below(std::uint32_t(quads - before + 1)));
      }
      std::vector<std::int8_t> falling = codes, full = queries;
      for (auto& x : full) x = std::int8_t(x < 0 ? -127 : 127);
      for (std::size_t i = 0; i < places * kBandsStretchTokens; ++i) {
        const std::size_t quad = i / kBandCodes % std::size_t(quads);
        for (std::size_t k = 0; k < NarrowQuads::kMost.size(); ++k) {
          if (std::int32_t(quad) < narrow.first[k]) continue;
          falling[i] = std::int8_t(full[4 * quad + i % 4] < 0 ? -NarrowQuads::kMost[k] : NarrowQuads::kMost[k]);
        }
      }
      std::swap(full, queries);
      for (const auto* some : {&ranges, &one}) {
        const std::vector<std::int8_t> all = by_ranges(*some);
        for (const std::int32_t tiles : {1, 3}) {
          const std::int32_t stride = 16 * tiles + 4;
          same(std::vector<float>(n * std::size_t(stride), 3.0f), [&](Kernels kernels, float* to) {
            kernels.score(falling.data(), tiles, *some, narrow, asked_of(all),
                          {factors.data(), offsets.data(), 0, to, stride});
          });
        }
      }
      std::swap(full, queries);
      const std::vector<std::int8_t> heaviest(weights.size(), 127);
      for (const auto* by : std::initializer_list<const std::vector<std::int8_t>*>{&weights, &heaviest}) {
        for (const std::int32_t tiles : {3, 4, 15, 16}) {
          std::vector<std::int8_t> some = *by;
          for (std::size_t i = 0; i < some.size(); ++i) {
            if (std::int32_t(i % kBandsStretchTokens) >= 16 * tiles) some[i] = 0;
          }
          same(std::vector<float>(n * places, 8.0f), [&](Kernels kernels, float* to) {
            std::vector<float*> out(n);
            for (std::size_t r = 0; r < n; ++r) out[r] = to + r * places;
            kernels.weigh(falling.data(), tiles, quads, narrow, {some.data(), nullptr, scales.data(), out.data(), rows});
          });
        }
      }
      for (const float* factor : std::initializer_list<const float*>{kept.data(), nullptr}) {
        for (const std::int32_t tiles : {3, 8, 16}) {
          std::vector<std::int8_t> by = weights;
          for (std::size_t i = 0; i < by.size(); ++i) {
            if (std::int32_t(i % kBandsStretchTokens) >= 16 * tiles) by[i] = 0;
          }
          same(std::vector<float>((n + 2) * places, 8.0f), [&](Kernels kernels, float* to) {
            // Sums lie anywhere, here with a gap and the last one first.
            std::vector<float*> out(n, to);
            for (std::size_t r = 0; r + 1 < n; ++r) out[r] = to + (r + 2) * places;
            kernels.weigh(codes.data(), tiles, quads, NarrowQuads{},
                          {by.data(), factor, scales.data(), out.data(), rows});
          });
        }
      }
      for (const std::int32_t tiles : {2, 4}) {
        same(std::vector<float>(n * 66), [&](Kernels kernels, float* to) {
          kernels.project(codes.data(), tiles, quads, factors.data(), queries.data(), quads * 4,
                          rows, to, 66);
        });
      }
    }
  }
}

// Of each number the nearest of 255, and sums of whole numbers, which are exact.
TEST(BandsKernels, KernelsOfEveryLevelRoundToTheNearest) {
  Random random(25);
  const auto nearest = [](const std::vector<float>& x, const std::vector<std::int8_t>& to,
                          float largest) {
    const double unit = double{largest} / 127.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      // Half a unit, and the f32 roundings of the factor, the product and the sum, 2^-22 of 127.
      EXPECT_NEAR(unit * to[i], double{x[i]}, 0.50005 * unit) << i << " of " << x.size();
    }
  };
  for (const BandsAttentionKernels* kernels : kernels_of_all_levels()) {
    for (const std::int32_t count : {4, 12, 16, 20, 64, 288}) {
      std::vector<float> x(static_cast<std::size_t>(count));
      std::vector<std::int8_t> to(x.size());
      float sum = 3.0f, exact = 3.0f, most = 0.0f;
      for (float& one : x) {
        one = float(int(random.below(2001)) - 1000);
        exact += one;
        most = std::max(most, std::abs(one));
      }
      EXPECT_EQ(kernels->round(x.data(), count, to.data(), &sum), most);
      EXPECT_EQ(sum, exact);
      nearest(x, to, most);
      std::fill(x.begin(), x.end(), 0.0f);
      EXPECT_EQ(kernels->round(x.data(), count, to.data(), &sum), 0.0f);
      EXPECT_EQ(to, std::vector<std::int8_t>(x.size()));
    }
    for (const std::int32_t tiles : {1, 2, 16}) {
      const auto count = std::size_t(tiles) * 16;
      std::vector<float> x(count), factors(count);
      std::vector<std::int8_t> to(count + 1, 77);
      float sum = 1.0f, exact = 1.0f, most = 0.0f;
      for (std::size_t i = 0; i < count; ++i) {
        x[i] = float(random.below(1000));
        factors[i] = float(1 + random.below(8));
        exact += x[i] * factors[i];
        most = std::max(most, x[i] * factors[i]);
      }
      EXPECT_EQ(kernels->round_weights(x.data(), factors.data(), tiles * 16, to.data(), &sum),
                most);
      EXPECT_EQ(sum, exact);
      EXPECT_EQ(to.back(), 77);  // after the last nothing is written
      nearest(x, to, most);
    }
  }
}

// At once as in two steps: the softmax of a row, then its weights times gains rounded.
TEST(BandsKernels, ScoresBecomeWeightsAtOnceAsInTwoSteps) {
  Random random(27);
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  for (const CpuLevel level : available_cpu_levels()) {
    const BandsAttentionKernels& kernels = bands_attention_kernels(level);
    if (kernels.soften == nullptr) continue;
    for (int trial = 0; trial < 400; ++trial) {
      const std::int32_t tiles = 1 + std::int32_t(random.below(kBandsStretchTiles)), count = 16 * tiles;
      std::vector<float> scores(std::size_t(count) + 16), gains(std::size_t(count), 1.0f);
      for (float& s : scores) s = random.below(9) == 0 ? kNothing : 20.0f * float(random.normal());
      if (trial % 40 == 0) std::fill(scores.begin(), scores.end(), kNothing);
      for (float& g : gains) g = float(std::exp2(random.normal()));
      const float before = trial % 3 == 0 ? kNothing : 40.0f * float(random.normal());
      const float light = trial % 2 == 0 ? 0.0f : 0.01f;

      float max = before, weighed = 0.0f;
      std::vector<float> weights = scores;
      const float sum = attention_kernels(level).soften_row(weights.data(), count, &max);
      std::vector<std::int8_t> expected(kBandsStretchTokens), to(expected.size(), 77);
      const bool skipped = max == before && sum < light;
      float largest = 0.0f;
      if (!skipped) {
        largest =
            kernels.round_weights(weights.data(), gains.data(), count, expected.data(), &weighed);
      }
      float at_once = before;
      const BandsRow row =
          kernels.soften(scores.data(), gains.data(), count, light, &at_once, to.data());
      EXPECT_EQ(at_once, max);
      EXPECT_EQ(row.light, skipped);
      EXPECT_NEAR(row.sum, sum, 1e-5 * sum);
      EXPECT_NEAR(row.weighed, weighed, 1e-5 * weighed);
      EXPECT_EQ(row.largest, largest);
      if (!skipped) {
        EXPECT_EQ(to, expected);
      }
    }
  }
}

// u . Rot(t - t_a) mu for every position of a block, against sines in double.
TEST(BandsKernels, KernelsOfEveryLevelMeetTheMean) {
  Random random(26);
  for (int trial = 0; trial < 60; ++trial) {
    const std::int32_t block = std::array{16, 48, 64, 256}[std::size_t(trial % 4)];
    const std::int32_t dim = 8 * (1 + std::int32_t(random.below(9))), heads = 2;
    Rope rope;
    rope.pairs = trial % 2 == 0 ? Rope::Pairs::kHalves : Rope::Pairs::kNeighbours;
    rope.rotated_dims = 2 * std::int32_t(1 + random.below(std::uint32_t(dim / 2)));
    const double base = std::pow(10.0, 1.0 + double(random.below(5)));
    for (std::int32_t j = 0; j < rope.rotated_dims; j += 2) {
      rope.angles.push_back(std::pow(base, -double(j) / rope.rotated_dims));
    }
    const auto d = std::size_t(dim), pairs = rope.angles.size();
    std::vector<float> mu(heads * d);
    for (float& x : mu) x = float(random.normal());
    const AnchoredMeans means(rope, block, mu.data(), heads, dim, MemoryKind::kShared, nullptr);
    EXPECT_LE(means.terms(), means.pairs());
    const std::int32_t rows = 1 + std::int32_t(random.below(7));
    std::vector<float> u(std::size_t(rows) * d), sums(std::size_t(rows * means.sums()));
    for (float& x : u) x = float(random.normal());
    for (const BandsAttentionKernels* kernels : kernels_of_all_levels()) {
      std::fill(sums.begin(), sums.end(), -1.0f);
      for (std::int32_t r = 0; r < rows; ++r) {
        kernels->fold(means, r % heads, u.data() + std::size_t(r) * d,
                      sums.data() + std::ptrdiff_t(r) * means.sums());
      }
      std::vector<float> got(std::size_t(rows * block));
      kernels->means(means, sums.data(), rows, got.data(), block);
      for (std::int32_t i = 0; i < rows * block; ++i) {
        const float* q = u.data() + std::size_t(i / block) * d;
        const float* m = mu.data() + std::size_t(i / block % heads) * d;
        double expected = 0.0, q_size = 0.0, m_size = 0.0;
        for (std::size_t k = 0; k < d; ++k) {
          q_size += double{q[k]} * double{q[k]};
          m_size += double{m[k]} * double{m[k]};
          if (k >= 2 * pairs) expected += double{q[k]} * double{m[k]};
        }
        for (std::size_t j = 0; j < pairs; ++j) {
          const bool neighbours = rope.pairs == Rope::Pairs::kNeighbours;
          const std::size_t x = neighbours ? 2 * j : j, y = neighbours ? 2 * j + 1 : j + pairs;
          const double angle = rope.angles[j] * (i % block - block / 2);
          const double c = std::cos(angle), s = std::sin(angle);
          expected += q[x] * (c * m[x] - s * m[y]) + q[y] * (s * m[x] + c * m[y]);
        }
        // Every product is rounded a few times, and added to at most dim others.
        const double bound =
            (AnchoredMeans::kError + (dim + 16.0) * 0x1p-24) * std::sqrt(q_size * m_size);
        ASSERT_NEAR(got[std::size_t(i)], expected, bound) << trial << ", position " << i % block;
      }
    }
  }
}

#if defined(__x86_64__)
// ggml shapes a thread's tiles once and for all.
TEST(BandsKernels, ShapesOfOthersComeBack) {
  if (available_cpu_levels().back() != CpuLevel::kAmx) return;  // no tiles here
  struct alignas(64) Shapes {
    std::array<std::uint8_t, 64> bytes;
  };
  Shapes foreign{}, within{}, after{};
  foreign.bytes[0] = 1;    // palette
  foreign.bytes[16] = 32;  // bytes of a row of register 0
  foreign.bytes[48] = 8;   // its rows
  const BandsAttentionKernels& kernels = bands_attention_kernels(CpuLevel::kAmx);
  asm volatile("ldtilecfg %0" : : "m"(foreign));
  {
    const BandsProducts products(kernels, 9);
    asm volatile("sttilecfg %0" : "=m"(within));
  }
  asm volatile("sttilecfg %0" : "=m"(after));
  asm volatile("tilerelease");
  EXPECT_NE(within.bytes, foreign.bytes);
  EXPECT_EQ(after.bytes, foreign.bytes);
  { const BandsProducts products(kernels, 9); }
  asm volatile("sttilecfg %0" : "=m"(after));
  EXPECT_EQ(after.bytes, Shapes{}.bytes) << "none before, none after";
}
#endif

}  // namespace
}  // namespace kvspan
