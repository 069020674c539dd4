// SPDX-License-Identifier: Apache-2.0
// Coded segments that follow each other under the same codes: joined as they come, bit for bit.
#include "cache/segments/join_segments.h"

#include <gtest/gtest.h>

#include "cache/code/coded_side.h"
#include "tests/cache/coded_rows.h"

namespace kvspan {
namespace {

using testing::Rows;

constexpr std::int32_t kHeads = 2, kKeyDim = 8, kValueDim = 12;
const GroupShape kShape{kHeads, kKeyDim, kValueDim, Element::kF16};
using Codes = std::vector<std::shared_ptr<const Code>>;

struct Pair {
  Codes keys, values;
};
Pair codes_of(const std::string& codec, bool values, const std::shared_ptr<Ledger>& ledger,
              Random& random) {
  Pair pair;
  for (std::int32_t h = 0; h < kHeads; ++h) {
    pair.keys.push_back(testing::make_code(
        {.domain = Domain::kPostRopeKey, .dim = kKeyDim, .rank = 4, .codec = codec}, ledger,
        random));
  }
  if (values) {  // one code for both heads
    pair.values.push_back(testing::make_code(
        {.heads = kHeads, .dim = kValueDim, .rank = 8, .codec = codec}, ledger, random));
  }
  return pair;
}

// The next `tokens` rows arrive full rank and are coded, as methods do it; or as a segment alone.
void code(SegmentList& list, const Pair& codes, std::int32_t tokens, std::uint64_t seed,
          bool replace, std::int32_t gap = 0) {
  Random random(seed);
  Rows rows(tokens, kHeads, kKeyDim, kValueDim, random);
  for (auto& position : rows.positions) position += list.next_position() + gap;
  Segment segment =
      encode_rows(rows.view(), kShape, {codes.keys, codes.values, true}, list.ledger()).value();
  if (!replace) return list.append(std::move(segment));
  const std::int32_t first = list.tokens();
  list.extend(rows.positions);
  list.replace(first, std::move(segment));
}

std::vector<std::int32_t> sizes_of(const SegmentList& list) {
  std::vector<std::int32_t> sizes;
  for (const Segment& segment : list.segments()) sizes.push_back(segment.tokens());
  return sizes;
}

// Every row as attention sees it, every residual norm, every position.
std::vector<float> contents(const SegmentList& list) {
  const auto n = std::size_t(list.tokens());
  std::vector<float> keys(n * kHeads * kKeyDim), all(n * kHeads * kValueDim);
  std::vector<std::int32_t> positions(n);
  list.read(0, {keys.data(), {n, kHeads, kKeyDim}}, {all.data(), {n, kHeads, kValueDim}},
            positions);
  all.insert(all.end(), keys.begin(), keys.end());
  for (const std::int32_t position : positions) all.push_back(float(position));
  for (const Segment& segment : list.segments()) {
    for (std::int32_t t = 0; t < segment.tokens(); ++t) {
      for (std::int32_t h = 0; h < kHeads; ++h) {
        all.push_back(segment.coded_keys->residual(h, t));
        if (segment.coded_values) all.push_back(segment.coded_values->residual(h, t));
      }
    }
  }
  return all;
}

TEST(JoinSegments, HoldTheSameBitsInNoMoreBytes) {
  for (const char* codec : {"f32", "f16", "int8", "int4:group=2", "int3:tile=16", "int8:tensor"}) {
    for (const bool values : {true, false}) {
      SCOPED_TRACE(codec);
      Random random(1);
      const auto ledger = std::make_shared<Ledger>(), apart_ledger = std::make_shared<Ledger>();
      const Pair codes = codes_of(codec, values, nullptr, random);
      SegmentList joined(kShape, ledger), apart(kShape, apart_ledger);
      for (std::uint64_t i = 0; i < 20; ++i) {
        code(joined, codes, 64, i, true);
        code(apart, codes, 64, i, false);
      }
      EXPECT_EQ(contents(joined), contents(apart));
      CacheBytes bytes;
      std::vector<const Code*> used;
      joined.add_bytes(bytes, used);
      finish_bytes(used, bytes);
      EXPECT_EQ(bytes.total - bytes.bases, ledger->total());
      EXPECT_LE(ledger->total(), apart_ledger->total());
      EXPECT_EQ(apart.segments().size(), 20u);
      if (std::string(codec) == "int8:tensor") {  // a scale for all tokens of a segment
        EXPECT_EQ(joined.segments().size(), 20u);
      } else {
        EXPECT_EQ(sizes_of(joined), (std::vector<std::int32_t>{SegmentGrowth{}.joined, 256}));
      }
    }
  }
}

TEST(JoinSegments, OtherCodesGapsAndTilesThatDoNotEndStayApart) {
  Random random(2);
  const auto ledger = std::make_shared<Ledger>();
  const Pair one = codes_of("int8", true, ledger, random);
  const Pair two = codes_of("int8", true, ledger, random);
  SegmentList list(kShape, ledger);
  code(list, one, 32, 1, true);
  code(list, two, 32, 2, true);
  code(list, two, 32, 3, true);
  code(list, two, 64, 4, true, 5);  // a gap would cost a list of positions
  EXPECT_EQ(sizes_of(list), (std::vector<std::int32_t>{32, 64, 64}));
  const Pair tiles = codes_of("int8:tile=16", true, ledger, random);
  SegmentList tiled(kShape, ledger);
  code(tiled, tiles, 24, 1, true);  // ends within a tile
  code(tiled, tiles, 32, 2, true);
  code(tiled, tiles, 32, 3, true);
  EXPECT_EQ(sizes_of(tiled), (std::vector<std::int32_t>{24, 64}));
}

TEST(JoinSegments, ForksKeepWhatTheyShareAndForgottenTokensDoNotComeBack) {
  Random random(3);
  const auto ledger = std::make_shared<Ledger>();
  const Pair codes = codes_of("int8", true, ledger, random);
  SegmentList list(kShape, ledger);
  for (std::uint64_t i = 0; i < 4; ++i) code(list, codes, 32, i, true);
  const std::vector<float> before = contents(list);
  SegmentList fork = list;
  fork.truncate(50);
  const std::size_t shared = ledger->total();
  code(fork, codes, 64, 9, true);
  EXPECT_EQ(sizes_of(fork), std::vector<std::int32_t>{114});
  EXPECT_EQ(contents(list), before);
  SegmentList expected(kShape, ledger);
  for (std::uint64_t i = 0; i < 4; ++i) code(expected, codes, 32, i, false);
  expected.truncate(50);
  code(expected, codes, 64, 9, false);
  EXPECT_EQ(contents(fork), contents(expected));
  expected.clear();
  fork.clear();
  EXPECT_EQ(ledger->total(), shared);
  list.clear();
  EXPECT_EQ(ledger->bytes(MemoryKind::kCoefficients), 0u);
}

}  // namespace
}  // namespace kvspan
