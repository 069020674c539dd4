// SPDX-License-Identifier: Apache-2.0
// Every outcome of every falsifier, from invented rows whose answer is known.
#include "eval/study/study_verdicts.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/eval/study_rows.h"

namespace kvspan::testing {
namespace {

using Outcome = StudyVerdict::Outcome;

VerdictOptions options() {
  VerdictOptions out;
  out.context = kContext;
  out.length_from = kContext / 8;
  out.bootstrap.resamples = 500;
  return out;
}

TEST(F1, IsRefutedWhenAllRanksCostMore) {
  const std::vector rows{invent({.group = "rank", .family = "static", .dppl_pct = 40.0, .kl = 0.4}),
                         invent({.group = "rank", .family = "fd", .dppl_pct = 3.0, .kl = 0.02})};
  const StudyVerdict verdict = judge_rank(rows, options());
  EXPECT_EQ(verdict.outcome, Outcome::kRefuted);
  EXPECT_NE(verdict.because.find("fd:rank"), std::string::npos);  // the best one is named
  ASSERT_EQ(verdict.numbers.size(), 4u);                          // perplexity and KL of each
  EXPECT_NEAR(verdict.numbers[2].value, 3.0, 0.2);
  EXPECT_LT(verdict.numbers[2].interval.low, verdict.numbers[2].value);
  EXPECT_GT(verdict.numbers[2].interval.high, verdict.numbers[2].value);
  EXPECT_NEAR(verdict.numbers[3].value, 100.0 * std::expm1(0.02), 0.2);
}

TEST(F1, TakesALargeDropOfPerplexityForABrokenCache) {
  const std::vector rows{invent({.group = "rank", .family = "oja", .dppl_pct = -22.0, .kl = 0.76})};
  EXPECT_EQ(judge_rank(rows, options()).outcome, Outcome::kRefuted);
  // Also where KL alone would not tell.
  const std::vector drop{
      invent({.group = "rank", .family = "oja", .dppl_pct = -22.0, .kl = 0.002})};
  EXPECT_EQ(judge_rank(drop, options()).outcome, Outcome::kRefuted);
}

TEST(F1, DoesNotHoldByPerplexityAlone) {
  const std::vector rows{invent({.group = "rank", .family = "fd", .dppl_pct = 0.1, .kl = 0.05})};
  EXPECT_EQ(judge_rank(rows, options()).outcome, Outcome::kRefuted);
}

TEST(F1, CountsNoRecipeThatHadNothingToCompress) {
  StudyRow row = invent({.group = "rank", .family = "fd", .dppl_pct = 0.0, .kl = 0.0});
  row.measured.compressed_positions = 0;
  EXPECT_EQ(judge_rank({&row, 1}, options()).outcome, Outcome::kUndecided);
}

TEST(F1, HoldsWhenOneSurelyCostsLess) {
  const std::vector rows{invent({.group = "rank", .family = "static", .dppl_pct = 40.0}),
                         invent({.group = "rank", .family = "fd", .dppl_pct = 0.4, .kl = 0.004})};
  EXPECT_EQ(judge_rank(rows, options()).outcome, Outcome::kHolds);
}

TEST(F1, IsUndecidedWhenTheIntervalHasBothSides) {
  const std::vector rows{
      invent({.group = "rank", .family = "static", .dppl_pct = 1.05, .kl = 0.01, .spread = 2.0})};
  EXPECT_EQ(judge_rank(rows, options()).outcome, Outcome::kUndecided);
}

TEST(F1, CountsNoHigherRanksOtherGroupsOrFailures) {
  std::vector rows{invent({.group = "rank", .family = "static", .dppl_pct = 0.1}),
                   invent({.group = "gamma", .family = "static", .dppl_pct = 0.1}),
                   invent({.group = "rank", .family = "fd", .dppl_pct = 0.1})};
  rows[0].rank_share = 0.5;
  rows[2].measured.failed = "no more room";
  const StudyVerdict verdict = judge_rank(rows, options());
  EXPECT_EQ(verdict.outcome, Outcome::kUndecided);
  EXPECT_TRUE(verdict.numbers.empty());
}

TEST(F1, IsUndecidedOnTooLittleText) {
  StudyRow row = invent({.group = "rank", .family = "static", .dppl_pct = 40.0});
  row.measured.blocks.resize(3);
  EXPECT_EQ(judge_rank({&row, 1}, options()).outcome, Outcome::kUndecided);
}

// Static at 2, 4 and 8 bits, whose KL halves with every doubling of the bytes; the others at
// 2.8 bits, where static's is 0.04 / 1.4 = 0.0286.
std::vector<StudyRow> equal_bytes(double fd, double rotate, double oja, double spread = 0.1) {
  std::vector<StudyRow> rows;
  for (const double bits : {2.0, 4.0, 8.0}) {
    rows.push_back(invent(
        {.group = "equal_bytes", .family = "static", .bits = bits, .kl = 0.08 / bits, .seed = 2}));
  }
  std::uint64_t seed = 3;
  for (const auto& [family, kl] : {std::pair{"fd", fd}, {"rotate", rotate}, {"oja", oja}}) {
    rows.push_back(invent({.group = "equal_bytes",
                           .family = family,
                           .bits = 2.8,
                           .kl = kl,
                           .spread = spread,
                           .seed = seed++}));
  }
  return rows;
}

TEST(F2, IsRefutedWhenNoneIsBetter) {
  const StudyVerdict verdict = judge_adaptive(equal_bytes(0.06, 0.05, 0.09), options());
  EXPECT_EQ(verdict.outcome, Outcome::kRefuted);
  ASSERT_GE(verdict.numbers.size(), 6u);  // three families, three levels
  EXPECT_NEAR(verdict.numbers[0].value, 0.06 / (0.08 / 2.8), 0.1);
  EXPECT_TRUE(verdict.numbers[0].decides);
  EXPECT_FALSE(verdict.numbers[3].decides);
}

TEST(F2, HoldsWhenOneIsBetter) {
  EXPECT_EQ(judge_adaptive(equal_bytes(0.06, 0.015, 0.09), options()).outcome, Outcome::kHolds);
}

TEST(F2, IsUndecidedWhenOneMayBe) {
  EXPECT_EQ(judge_adaptive(equal_bytes(0.06, 0.0286, 0.09, 0.5), options()).outcome,
            Outcome::kUndecided);
}

TEST(F2, IsUndecidedWhileAFamilyIsMissing) {
  std::vector<StudyRow> rows = equal_bytes(0.06, 0.05, 0.09);
  rows.pop_back();
  EXPECT_EQ(judge_adaptive(rows, options()).outcome, Outcome::kUndecided);
  EXPECT_EQ(judge_adaptive({}, options()).outcome, Outcome::kUndecided);
}

TEST(F2, ComparesNothingOutsideOfStaticsBytes) {
  std::vector<StudyRow> rows = equal_bytes(0.06, 0.015, 0.09);
  rows[4].measured.kv_bytes *= 8;  // rotate, the better one, at 22 bits
  const StudyVerdict verdict = judge_adaptive(rows, options());
  EXPECT_EQ(verdict.outcome, Outcome::kUndecided);
  for (const StudyNumber& number : verdict.numbers) {
    EXPECT_EQ(number.name.find("rotate"), std::string::npos) << number.name;
  }
}

std::vector<StudyRow> lengths(double fd, double spectral, double spread = 0.1) {
  return {invent({.group = "length", .family = "fd", .spread = spread, .growth = fd, .seed = 5}),
          invent({.group = "length",
                  .family = "spectral",
                  .spread = spread,
                  .growth = spectral,
                  .seed = 6}),
          invent({.group = "length", .family = "static", .growth = 2.0})};
}

TEST(F3, HoldsWhenOneWithChunksStaysFlat) {
  const StudyVerdict verdict = judge_length(lengths(0.1, 1.5), options());
  EXPECT_EQ(verdict.outcome, Outcome::kHolds);
  ASSERT_EQ(verdict.numbers.size(), 3u);
  EXPECT_NEAR(verdict.numbers[0].value, std::exp(0.1), 0.1);
  EXPECT_NEAR(verdict.numbers[1].value, std::exp(1.5), 0.4);
  EXPECT_FALSE(verdict.numbers[2].decides);  // static has no chunks
}

TEST(F3, IsRefutedWhenAllGrowSharply) {
  EXPECT_EQ(judge_length(lengths(1.0, 1.5), options()).outcome, Outcome::kRefuted);
}

TEST(F3, IsUndecidedInNoise) {
  EXPECT_EQ(judge_length(lengths(0.4, 0.4, 1.0), options()).outcome, Outcome::kUndecided);
  EXPECT_EQ(judge_length({}, options()).outcome, Outcome::kUndecided);
}

// Steps of four layers; `noise`: how far the bound's logarithm strays from the error's.
std::vector<StudySample> samples(double noise, double margin, double delta_noise = 0.0) {
  Random random(7);
  std::vector<StudySample> out;
  for (int step = 0; step < 20; ++step) {
    for (int layer = 0; layer < 4; ++layer) {
      StudySample sample{"fd:certify=on", {}};
      sample.step.layer = layer;
      sample.step.position = 64 * step;
      const double size = random.normal();
      sample.step.logit_error = sample.step.output_error = std::exp(size);
      const double bound = std::exp(size + margin + noise * random.normal());
      sample.step.bound = Certificate{bound, bound, bound, bound};
      sample.step.key_delta = sample.step.value_delta =
          std::exp(size + delta_noise * random.normal());
      out.push_back(std::move(sample));
    }
  }
  return out;
}

TEST(F4, HoldsWhenBoundsGoWithErrors) {
  const StudyVerdict verdict = judge_bounds(samples(0.1, 1.0), options());
  EXPECT_EQ(verdict.outcome, Outcome::kHolds);
  ASSERT_EQ(verdict.numbers.size(), 5u);
  EXPECT_EQ(verdict.numbers.back().value, 0.0);
  EXPECT_EQ(verdict.numbers.back().n, 160u);
}

TEST(F4, IsRefutedByOneBoundBelowItsError) {
  std::vector<StudySample> broken = samples(0.1, 1.0);
  broken[17].step.bound->logits = 0.99 * broken[17].step.logit_error;
  const StudyVerdict verdict = judge_bounds(broken, options());
  EXPECT_EQ(verdict.outcome, Outcome::kRefuted);
  EXPECT_EQ(verdict.numbers.back().value, 1.0);
}

TEST(F4, IsRefutedWhenDeltaSaysNothing) {
  const StudyVerdict verdict = judge_bounds(samples(0.1, 1.0, 30.0), options());
  EXPECT_EQ(verdict.outcome, Outcome::kRefuted);
  EXPECT_NE(verdict.because.find("Delta"), std::string::npos);
}

TEST(F4, IsUndecidedInBetweenAndWithoutSamples) {
  EXPECT_EQ(judge_bounds(samples(0.1, 1.0, 1.4), options()).outcome, Outcome::kUndecided);
  EXPECT_EQ(judge_bounds({}, options()).outcome, Outcome::kUndecided);
}

TEST(Verdicts, AreTheSameForTheSameRows) {
  const StudyData data{equal_bytes(0.06, 0.05, 0.09), samples(0.3, 1.0)};
  const auto once = judge(data, options()), again = judge(data, options());
  ASSERT_EQ(once.size(), 4u);
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_EQ(once[i].because, again[i].because);
}

TEST(StudyRows, DrawWindowsFromEightOn) {
  StudyRow row = invent({.group = "rank", .family = "static"});
  const std::size_t blocks = row.measured.blocks.size();
  EXPECT_EQ(parts_of(row.measured, kContext).kl.size(), blocks);
  PerplexityRow eight;
  for (std::int32_t w = 0; w < 8; ++w) {
    for (PositionBlock block : row.measured.blocks) {
      block.window = w;
      eight.blocks.push_back(block);
    }
  }
  const RowParts parts = parts_of(eight, kContext);
  ASSERT_EQ(parts.kl.size(), 8u);
  EXPECT_NEAR(parts.kl[3].value, row.measured.figures.kl, 1e-12);
  EXPECT_EQ(parts.kl[3].weight, kContext / 2);
}

}  // namespace
}  // namespace kvspan::testing
