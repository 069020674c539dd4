// SPDX-License-Identifier: Apache-2.0
// Coded segments: what they give back, what they lost, forks, truncation, refusals.
#include "cache/code/coded_side.h"

#include <gtest/gtest.h>

#include "cache/rope.h"
#include "tests/cache/coded_rows.h"

namespace kvspan {
namespace {

using testing::Rows;

std::vector<std::shared_ptr<const Code>> one(std::shared_ptr<const Code> code) {
  return {std::move(code)};
}

TEST(CodedSide, FullRankInF32GivesRowsBackInEveryDomain) {
  Random random(1);
  const Rope rope = testing::test_rope(12, Rope::Pairs::kHalves, 1.25f);
  const std::int32_t heads = 2, d = 16, n = 40;
  Rows rows(n, heads, d, d, random);
  for (auto& position : rows.positions) position = 1000 + 3 * position;
  for (const Domain domain : {Domain::kPostRopeKey, Domain::kPreRopeKey, Domain::kAnchoredKey}) {
    const auto code = testing::make_code({.domain = domain,
                                          .heads = heads,
                                          .dim = d,
                                          .rank = heads * d,
                                          .anchor_block = domain == Domain::kAnchoredKey ? 24 : 0,
                                          .mean = 0.5,
                                          .rope = rope},
                                         nullptr, random);
    const auto segment =
        encode_rows(rows.view(), {heads, d, d, Element::kF32}, {one(code), {}}, nullptr).value();
    std::vector<float> back(std::size_t(n * d));
    for (std::int32_t h = 0; h < heads; ++h) {
      segment.coded_keys->reconstruct(h, segment.positions, 0,
                                      {back.data(), {std::size_t(n), std::size_t(d)}});
      for (std::int32_t t = 0; t < n; ++t) {
        double lost = 0.0;
        for (std::int32_t i = 0; i < d; ++i) {
          const double x = rows.view().keys.row(t, h)[i], y = back[std::size_t(t * d + i)];
          // A full-rank orthonormal code: two products of 32 terms in f32, turns, the mean.
          ASSERT_NEAR(x, y, 2e-5);
          lost += (x - y) * (x - y);
        }
        const double residual = segment.coded_keys->residual(h, t);
        ASSERT_GE(residual, std::sqrt(lost));
        ASSERT_LE(residual, 1.01 * std::sqrt(lost));
      }
    }
  }
}

TEST(CodedSide, ResidualIsWhatProjectionAndQuantizationLost) {
  Random random(2);
  for (const char* codec : {"f32", "f16", "int8:row", "int4:group=8", "int2:tile=8"}) {
    for (const double scale : {1e-3, 1.0, 1e3}) {
      Rows rows(30, 1, 8, 24, random, scale);
      // Some tokens lie in the span, where the energy identity would cancel to nothing.
      const auto code = testing::make_code({.dim = 24, .rank = 9, .codec = codec}, nullptr, random);
      std::vector<float> c(9);
      for (std::int32_t t = 0; t < 10; ++t) {
        for (float& x : c) x = static_cast<float>(scale * random.normal());
        code->synthesise(0, c.data(), rows.values.data() + t * 24);
      }
      const auto segment =
          encode_rows(rows.view(), {1, 8, 24, Element::kF32}, {{}, one(code)}, nullptr).value();
      std::vector<float> back(30 * 24);
      segment.coded_values->reconstruct(0, segment.positions, 0, {back.data(), {30, 24}});
      for (std::int32_t t = 0; t < 30; ++t) {
        double lost = 0.0;
        for (std::size_t i = 0; i < 24; ++i) {
          const double off =
              double{rows.values[std::size_t(t) * 24 + i]} - back[std::size_t(t) * 24 + i];
          lost += off * off;
        }
        ASSERT_GE(segment.coded_values->residual(0, t), std::sqrt(lost)) << codec;
        ASSERT_LE(segment.coded_values->residual(0, t), 1.01 * std::sqrt(lost)) << codec;
      }
    }
  }
}

TEST(CodedSide, ForksShareAndTruncationDropsRowsWithoutReencoding) {
  Random random(3);
  const auto ledger = std::make_shared<Ledger>();
  const GroupShape shape{2, 8, 8, Element::kF16};
  const Rows rows(50, 2, 8, 8, random);
  const auto code = testing::make_code({.heads = 2, .dim = 8, .rank = 6, .codec = "int4:tile=16"},
                                       ledger, random);
  SegmentList list(shape, ledger);
  list.append(encode_rows(rows.view(), shape, {{}, one(code)}, ledger).value());
  const std::size_t before = ledger->total();
  SegmentList fork = list;
  EXPECT_EQ(ledger->total(), before);
  fork.truncate(21);  // in the middle of a tile of 16 tokens
  EXPECT_EQ(fork.tokens(), 21);
  EXPECT_EQ(list.tokens(), 50);
  EXPECT_EQ(ledger->total(), before);
  std::vector<float> own(21 * 8), other(21 * 8);
  const Segment& a = list.segments()[0];
  const Segment& b = fork.segments()[0];
  a.coded_values->reconstruct(1, a.positions, 0, {own.data(), {21, 8}});
  b.coded_values->reconstruct(1, b.positions, 0, {other.data(), {21, 8}});
  EXPECT_EQ(own, other);
  // New rows do not enter a coded segment, truncated or not.
  const std::int32_t next[] = {21};
  fork.extend(next);
  EXPECT_EQ(fork.segments().size(), 2u);
  EXPECT_EQ(fork.next_position(), 22);
  EXPECT_EQ(list.next_position(), 50);
  list.clear();
  fork.truncate(0);
  EXPECT_EQ(ledger->bytes(MemoryKind::kCoefficients), 0u);
  EXPECT_EQ(ledger->bytes(MemoryKind::kScales), 0u);
  EXPECT_EQ(ledger->bytes(MemoryKind::kPositions), 0u);
}

TEST(CodedSide, TokensThatShareAScaleAreSelectedTogether) {
  Random random(7);
  constexpr std::int32_t kRows = 45;
  for (const auto& [codec, unit] : {std::pair{"int4:column=8", 8}, {"int8:tensor", 0}, {"int2:row", 1}, {"f16", 1}}) {
    Rows rows(kRows, 1, 8, 16, random);
    const auto code = testing::make_code({.dim = 16, .rank = 16, .codec = codec}, nullptr, random);
    const auto segment =
        encode_rows(rows.view(), {1, 8, 16, Element::kF32}, {{}, one(code)}, nullptr).value();
    const CodedSide& side = *segment.coded_values;
    ASSERT_EQ(side.unit(), unit) << codec;
    // Every other unit, and the last, which is shorter; of all in one, all.
    std::vector<std::int32_t> some;
    for (std::int32_t t = 0; t < kRows; ++t) {
      if (unit == 0 || t / unit % 2 == 1 || t / unit == (kRows - 1) / unit) some.push_back(t);
    }
    const auto selected = side.select(some, nullptr);
    std::vector<float> all(kRows * 16), kept(some.size() * 16);
    side.reconstruct(0, segment.positions, 0, {all.data(), {kRows, 16}});
    selected->reconstruct(0, segment.positions, 0, {kept.data(), {some.size(), 16}});
    for (std::size_t i = 0; i < kept.size(); ++i) {
      ASSERT_EQ(kept[i], all[std::size_t(some[i / 16]) * 16 + i % 16]) << codec << ", token " << some[i / 16];
    }
    for (std::size_t i = 0; i < some.size(); ++i) {
      EXPECT_EQ(selected->residual(0, std::int32_t(i)), side.residual(0, some[i])) << codec;
    }
  }
}

TEST(CodedSide, CodesThatDoNotFitTheRowsAreRefused) {
  Random random(4);
  const auto ledger = std::make_shared<Ledger>();
  const GroupShape shape{2, 8, 8, Element::kF16};
  const Rows rows(5, 2, 8, 8, random);
  const auto value = testing::make_code({.heads = 1, .dim = 8, .rank = 2}, ledger, random);
  const auto wide = testing::make_code({.heads = 1, .dim = 16, .rank = 2}, ledger, random);
  const auto refused = [&](std::vector<std::shared_ptr<const Code>> keys,
                           std::vector<std::shared_ptr<const Code>> values) {
    const auto made = encode_rows(rows.view(), shape, {keys, values}, ledger);
    return !made.has_value() && made.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({value, value}, {}));  // a code of values for keys
  EXPECT_TRUE(refused({}, {value}));         // one head short
  EXPECT_TRUE(refused({}, {value, wide}));
  EXPECT_FALSE(refused({}, {value, value}));
  EXPECT_EQ(ledger->bytes(MemoryKind::kCoefficients), 0u);
}

TEST(CodedSide, NumbersTheCodecCannotHoldAreRefused) {
  Random random(5);
  Rows rows(5, 1, 8, 8, random);
  rows.values[3] = 1e30f;
  const auto code = testing::make_code({.dim = 8, .rank = 8, .codec = "f16"}, nullptr, random);
  EXPECT_FALSE(
      encode_rows(rows.view(), {1, 8, 8, Element::kF32}, {{}, one(code)}, nullptr).has_value());
}

}  // namespace
}  // namespace kvspan
