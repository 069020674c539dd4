// SPDX-License-Identifier: Apache-2.0
// Scores made in steps against those made at once by the plain loops.
#include "attention/bands/kernels/score_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace kvspan {
namespace {

// Factors are powers of two and sums stay below 2^23: every order of them gives the same bits.
TEST(ScoreSteps, TheSameScoresWhereverTheWorkIsInterrupted) {
  Random random(31);
  for (const CpuLevel level : available_cpu_levels()) {
    const BandsAttentionKernels& kernels = bands_attention_kernels(level);
    if (kernels.score_part == nullptr) continue;
    for (int trial = 0; trial < 200; ++trial) {
      const std::int32_t rows = 1 + std::int32_t(random.below(kBandsPartRows));
      const std::int32_t tiles = 1 + std::int32_t(random.below(kBandsStretchTiles));
      std::vector<BandsCode::ScaleRange> ranges;
      std::int32_t quads = 0, stride = 0;
      for (std::uint32_t i = 0, count = 1 + random.below(3); i < count; ++i) {
        const BandsCode::ScaleRange range{quads, 1 + std::int32_t(random.below(40))};
        // A second digit of the first quads.
        if (random.below(2) == 0) ranges.push_back({quads, 1 + std::int32_t(random.below(std::uint32_t(range.quads)))});
        ranges.push_back(range);
        quads += range.quads;
      }
      for (const BandsCode::ScaleRange& range : ranges) stride += query_bytes(range);
      const auto n = std::size_t(rows), tokens = std::size_t(tiles) * 16;
      std::vector<std::int8_t> codes(tokens * std::size_t(4 * quads) + 960), queries;
      for (auto& x : codes) x = std::int8_t(int(random.below(256)) - 128);
      for (std::size_t r = 0; r < n; ++r) {
        for (const BandsCode::ScaleRange& range : ranges) {
          const std::size_t end = queries.size() + std::size_t(query_bytes(range));
          for (std::int32_t i = 0; i < 4 * range.quads; ++i) {
            queries.push_back(std::int8_t(int(random.below(255)) - 127));
          }
          queries.resize(end);
        }
      }
      std::vector<float> scales(n * kBandScales), offsets(n), gains(tokens), means(n * tokens);
      for (auto* some : {&scales, &offsets, &gains, &means}) {
        for (float& x : *some) x = std::ldexp(1.0f, -int(random.below(3)));
      }
      const BandsQueries asked{queries.data(), stride, scales.data(), offsets.data(), rows};
      const auto width = std::int32_t(tokens);
      std::vector<float> expected(n * tokens), scores = expected;
      detail::kBandsAttentionRef.score(codes.data(), tiles, ranges, NarrowQuads{}, asked,
                                       {gains.data(), means.data(), width, expected.data(), width});

      const BandsProducts products(kernels, rows);
      ScoreSteps steps(kernels, ranges, asked,
                       {gains.data(), means.data(), width, scores.data(), width});
      for (std::int32_t i = 0; i < tiles; ++i) {
        for (std::uint32_t k = random.below(12); k > 0; --k) steps.step();
        steps.add(codes.data() + std::size_t(i) * std::size_t(quads) * 64);
      }
      steps.finish();
      ASSERT_EQ(scores, expected) << name_of(level) << ", " << rows << " rows, " << tiles
                                  << " tiles, " << ranges.size() << " ranges";
    }
  }
}

}  // namespace
}  // namespace kvspan
