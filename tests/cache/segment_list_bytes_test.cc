// SPDX-License-Identifier: Apache-2.0
// Saving and loading lists of segments: round trips bit for bit, and bytes that are truncated,
// damaged or forged.
#include "cache/segments/segment_list_bytes.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cache/code/coded_side.h"
#include "tests/base/sweep.h"
#include "tests/cache/coded_rows.h"
#include "tests/cache/framed_list.h"

namespace kvspan::testing {
namespace {

constexpr std::int32_t kHeads = 2, kKeyDim = 8, kValueDim = 6;

struct Sample {
  std::string name;
  SegmentList list;
};

GroupShape shape_of(Element element) {
  return {kHeads, kKeyDim, kValueDim, element};
}

class Builder {
 public:
  explicit Builder(Element element)
      : list_(shape_of(element), std::make_shared<Ledger>()), random_(17) {}

  std::vector<std::shared_ptr<const Code>> codes(CodeOf of, bool joint) {
    of.dim = of.domain == Domain::kValue ? kValueDim : kKeyDim;
    of.heads = joint ? kHeads : 1;
    std::vector<std::shared_ptr<const Code>> all;
    for (std::int32_t i = 0; i < (joint ? 1 : kHeads); ++i) {
      all.push_back(make_code(of, list_.ledger(), random_));
    }
    return all;
  }
  // `gap`: positions jump within the segment.
  void coded(std::int32_t tokens, const std::vector<std::shared_ptr<const Code>>& keys,
             const std::vector<std::shared_ptr<const Code>>& values, bool residuals = true,
             bool gap = false) {
    const Rows rows = next_rows(tokens, gap);
    list_.append(
        encode_rows(rows.view(), list_.shape(), {keys, values, residuals}, list_.ledger()).value());
  }
  void full(std::int32_t tokens, bool gap = false) {
    const Rows rows = next_rows(tokens, gap);
    const std::int32_t first = list_.tokens();
    list_.extend(rows.positions);
    for (std::int32_t h = 0; h < kHeads; ++h) {
      list_.write(first, rows.view().keys, rows.view().values, h, 0, tokens);
    }
  }
  SegmentList& list() { return list_; }

 private:
  Rows next_rows(std::int32_t tokens, bool gap) {
    Rows rows(tokens, kHeads, kKeyDim, kValueDim, random_);
    for (std::size_t t = 0; t < rows.positions.size(); ++t) {
      rows.positions[t] = list_.next_position() + std::int32_t(t) * (gap ? 3 : 1);
    }
    return rows;
  }

  SegmentList list_;
  Random random_;
};

// Every codec, domain and shape of segment.
std::vector<Sample> samples() {
  std::vector<Sample> all;
  all.push_back({"empty", Builder(Element::kF16).list()});
  for (const Element element : {Element::kF16, Element::kF32}) {
    Builder full(element);
    full.full(40);
    full.full(5, true);
    all.push_back({"full rank", full.list()});
  }
  for (const char* codec :
       {"f32", "f16", "bf16", "int8", "int4:group=2", "int3:tile=4", "int2:tile=4x2,asym",
        "int8:column=4,asym,scale=f32", "int4:column", "int8:head=2", "int4:tensor"}) {
    Builder coded(Element::kF16);
    const Rope rope = test_rope(kKeyDim, Rope::Pairs::kHalves, 1.25f);
    const auto value = coded.codes({.rank = 5, .mean = 0.5, .codec = codec}, false);
    coded.full(3);
    coded.coded(9, coded.codes({.domain = Domain::kPostRopeKey, .rank = 4, .codec = codec}, false),
                value);
    coded.coded(7,
                coded.codes({.domain = Domain::kPreRopeKey,
                             .rank = 6,
                             .mean = 1.0,
                             .codec = codec,
                             .rope = rope,
                             .own_synthesis = true},
                            true),
                value, false);
    coded.coded(8,
                coded.codes({.domain = Domain::kAnchoredKey,
                             .rank = 3,
                             .anchor_block = 16,
                             .mean = 1.0,
                             .codec = codec,
                             .rope = rope},
                            true),
                {}, true, true);
    coded.coded(4, {}, value);
    coded.full(2);
    all.push_back({codec, coded.list()});
    // Tokens forgotten from the end of a coded segment, whose bytes stay.
    SegmentList shorter = coded.list();
    shorter.truncate(shorter.segments()[2].positions.at(3));
    all.push_back({std::string(codec) + ", truncated", shorter});
  }
  return all;
}

std::vector<float> reconstructed(const CodedSide& side, const Segment& segment, std::int32_t dim) {
  const auto n = std::size_t(segment.tokens()), d = std::size_t(dim);
  std::vector<float> rows(kHeads * n * d);
  for (std::int32_t h = 0; h < kHeads; ++h) {
    side.reconstruct(h, segment.positions, 0, {rows.data() + std::size_t(h) * n * d, {n, d}});
  }
  return rows;
}

void expect_same_side(const Segment& a, const Segment& b, bool keys) {
  const auto& coded_a = keys ? a.coded_keys : a.coded_values;
  const auto& coded_b = keys ? b.coded_keys : b.coded_values;
  const std::int32_t dim = keys ? kKeyDim : kValueDim;
  ASSERT_EQ(coded_a == nullptr, coded_b == nullptr);
  if (coded_a == nullptr) {
    for (std::int32_t h = 0; h < kHeads; ++h) {
      const RowsView from = (keys ? a.keys : a.values).head(h);
      const RowsView to = (keys ? b.keys : b.values).head(h);
      ASSERT_EQ(from.stride, to.stride);
      ASSERT_EQ(0, std::memcmp(from.data, to.data,
                               std::size_t(a.tokens() * from.stride) * bytes_of(from.element)));
    }
    return;
  }
  ASSERT_EQ(coded_a->tokens(), coded_b->tokens());
  ASSERT_EQ(coded_a->has_residuals(), coded_b->has_residuals());
  ASSERT_EQ(coded_a->highest_rank(), coded_b->highest_rank());
  const auto rows_a = reconstructed(*coded_a, a, dim), rows_b = reconstructed(*coded_b, b, dim);
  ASSERT_EQ(0, std::memcmp(rows_a.data(), rows_b.data(), rows_a.size() * sizeof(float)));
  for (std::int32_t h = 0; h < kHeads; ++h) {
    const auto &part_a = coded_a->part(h), &part_b = coded_b->part(h);
    EXPECT_EQ(part_a.quantization, part_b.quantization);
    EXPECT_EQ(part_a.code->analysis_norm(), part_b.code->analysis_norm());
    EXPECT_EQ(part_a.code->inverse_error(), part_b.code->inverse_error());
    EXPECT_EQ(part_a.code->gamma(), part_b.code->gamma());
    EXPECT_EQ(part_a.code->rope(), part_b.code->rope());
    for (std::int32_t t = 0; coded_a->has_residuals() && t < a.tokens(); ++t) {
      EXPECT_EQ(coded_a->residual(h, t), coded_b->residual(h, t));
    }
  }
}

void expect_same(const SegmentList& a, const SegmentList& b) {
  ASSERT_EQ(a.tokens(), b.tokens());
  ASSERT_EQ(a.segments().size(), b.segments().size());
  for (std::size_t i = 0; i < a.segments().size(); ++i) {
    const Segment &from = a.segments()[i], &to = b.segments()[i];
    ASSERT_EQ(from.tokens(), to.tokens());
    ASSERT_EQ(from.room(), to.room());
    for (std::int32_t t = 0; t < from.tokens(); ++t) {
      ASSERT_EQ(from.positions.at(t), to.positions.at(t));
    }
    expect_same_side(from, to, true);
    expect_same_side(from, to, false);
  }
}

Result<SegmentList> load(std::span<const std::byte> bytes, const GroupShape& shape,
                         const std::shared_ptr<Ledger>& ledger = nullptr) {
  return load_framed(bytes, shape, ledger);
}

// Everything a reader may do with what was loaded.
void use(const SegmentList& list) {
  for (const Segment& segment : list.segments()) {
    for (const bool keys : {true, false}) {
      const auto& coded = keys ? segment.coded_keys : segment.coded_values;
      if (coded) (void)reconstructed(*coded, segment, keys ? kKeyDim : kValueDim);
    }
  }
  SegmentList longer = list;
  const std::int32_t next[] = {list.next_position(), list.next_position() + 2};
  longer.extend(next);
  longer.truncate(list.next_position() / 2);
}

void fix_checksum(std::vector<std::byte>& bytes) {
  const std::uint64_t sum = crc64(std::span(bytes).first(bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &sum, 8);
}

TEST(SegmentListBytes, LoadingGivesTheSameBits) {
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.name);
    const auto bytes = save_framed(sample.list);
    auto ledger = std::make_shared<Ledger>();
    const auto loaded = load(bytes, sample.list.shape(), ledger);
    ASSERT_TRUE(loaded) << loaded.error().message;
    expect_same(sample.list, *loaded);
    EXPECT_EQ(save_framed(*loaded), bytes);
    // What is counted is what is held; nothing more than before, and the same where nothing had
    // been truncated.
    CacheBytes before, after;
    std::vector<const Code*> codes_before, codes_after;
    sample.list.add_bytes(before, codes_before);
    loaded->add_bytes(after, codes_after);
    finish_bytes(codes_before, before);
    finish_bytes(codes_after, after);
    EXPECT_EQ(ledger->total(), after.total);
    EXPECT_LE(after.total, before.total);
    if (sample.name.find("truncated") == std::string::npos) {
      EXPECT_EQ(after.total, before.total);
    }
  }
}

TEST(SegmentListBytes, LoadedListsGrowOn) {
  Builder builder(Element::kF16);
  builder.full(37);
  auto loaded = load(save_framed(builder.list()), builder.list().shape());
  ASSERT_TRUE(loaded);
  std::vector<std::int32_t> positions;
  for (std::int32_t t = 0; t < 100; ++t) positions.push_back(37 + t);
  loaded->extend(positions);
  builder.list().extend(positions);
  ASSERT_EQ(loaded->segments().size(), builder.list().segments().size());
  for (std::size_t i = 0; i < loaded->segments().size(); ++i) {
    EXPECT_EQ(loaded->segments()[i].capacity, builder.list().segments()[i].capacity);
  }
}

TEST(SegmentListBytes, ACodeIsWrittenAndHeldOnceHoweverManySegmentsUseIt) {
  const auto build = [](int segments) {
    Builder builder(Element::kF16);
    const auto keys = builder.codes({.domain = Domain::kPostRopeKey, .rank = 8}, true);
    const auto values = builder.codes({.rank = 6}, true);
    for (int i = 0; i < segments; ++i) builder.coded(1, keys, values, false);
    return builder.list();
  };
  const std::size_t one = save_framed(build(1)).size();
  const std::size_t two = save_framed(build(2)).size();
  const std::size_t nine = save_framed(build(9)).size();
  EXPECT_EQ(nine - two, 7 * (two - one));
  EXPECT_LT(two - one, 120u);  // a token; its codes take 16 * 8 * 4 + 12 * 6 * 4 bytes
  const auto loaded = load(save_framed(build(9)), shape_of(Element::kF16));
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->segments()[0].coded_keys->part(0).code,
            loaded->segments()[8].coded_keys->part(1).code);
}

TEST(SegmentListBytes, KnownCodesAreNamedAndNotWritten) {
  Builder builder(Element::kF16);
  const auto keys = builder.codes({.domain = Domain::kPostRopeKey, .rank = 8}, true);
  const auto values = builder.codes({.rank = 6}, true);
  builder.coded(5, keys, values);
  builder.coded(5, keys, values);
  const std::vector<std::shared_ptr<const Code>> known{keys[0], values[0]};
  ByteWriter out;
  CodeWriter writer(known, out);
  save(builder.list(), writer, out);
  EXPECT_LT(out.bytes().size(), save_framed(builder.list()).size() - 700);

  ByteReader in(out.bytes(), "test");
  auto reader = CodeReader::open(known, in, nullptr);
  ASSERT_TRUE(reader);
  const auto loaded = load_segment_list(builder.list().shape(), {}, *reader, in, nullptr);
  ASSERT_TRUE(loaded) << loaded.error().message;
  expect_same(builder.list(), *loaded);
  EXPECT_EQ(loaded->segments()[1].coded_keys->part(0).code, keys[0]);

  const std::vector<std::shared_ptr<const Code>> others{keys[0], keys[0]};
  ByteReader again(out.bytes(), "test");
  const auto refused = CodeReader::open(others, again, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("known code 1"), std::string::npos);
  ByteReader third(out.bytes(), "test");
  EXPECT_FALSE(CodeReader::open({}, third, nullptr));
}

TEST(SegmentListBytes, EveryTruncationIsRefusedWithItsPlace) {
  for (const Sample& sample : samples()) {
    auto bytes = save_framed(sample.list);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const auto loaded = load(std::span(bytes).first(size), sample.list.shape());
      ASSERT_FALSE(loaded) << size;
      EXPECT_EQ(loaded.error().code, ErrorCode::kCorruptData);
      EXPECT_NE(loaded.error().message.find("at byte"), std::string::npos);
    }
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(load(bytes, sample.list.shape()));
  }
}

// Truncated payloads in a frame that is whole again: every read is checked on its own.
TEST(SegmentListBytes, EveryTruncatedPayloadIsRefused) {
  // With sanitizers every third, which still cuts every number of four bytes.
  const std::size_t step = testing::kSanitized ? 3 : 1;
  for (const Sample& sample : samples()) {
    const auto bytes = save_framed(sample.list);
    for (std::size_t size = kFrameHeaderBytes; size + 8 < bytes.size(); size += step) {
      std::vector<std::byte> cut(bytes.begin(), bytes.begin() + std::ptrdiff_t(size));
      const std::uint64_t payload = size - kFrameHeaderBytes;
      std::memcpy(cut.data() + 16, &payload, sizeof(payload));
      cut.resize(size + 8);
      fix_checksum(cut);
      const auto loaded = load(cut, sample.list.shape());
      ASSERT_FALSE(loaded) << sample.name << " " << size;
      EXPECT_EQ(loaded.error().code, ErrorCode::kCorruptData);
    }
  }
}

TEST(SegmentListBytes, TenThousandFlippedBitsAreAllFound) {
  Random random(4);
  const auto all = samples();
  std::vector<std::vector<std::byte>> saved;
  for (const Sample& sample : all) saved.push_back(save_framed(sample.list));
  for (std::size_t flip = 0; flip < 10'000; ++flip) {
    const std::size_t which = flip % all.size();
    auto bytes = saved[which];
    const std::uint32_t bits = 1 + random.below(3);
    for (std::uint32_t i = 0; i < bits; ++i) {
      const std::uint32_t bit = random.below(static_cast<std::uint32_t>(8 * bytes.size()));
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    const auto loaded = load(bytes, all[which].list.shape());
    if (loaded) {
      EXPECT_EQ(bytes, saved[which]);  // a bit flipped twice
    } else {
      EXPECT_EQ(loaded.error().code, ErrorCode::kCorruptData);
      EXPECT_NE(loaded.error().message.find("byte"), std::string::npos);
    }
  }
}

// The checksum made right again: what is left are the checks of each field. Numbers may differ, but
// whatever loads must be usable.
TEST(SegmentListBytes, ForgedFieldsAreRefusedOrHarmless) {
  Random random(5);
  const auto all = samples();
  std::size_t refused = 0, taken = 0;
  for (std::size_t flip = 0; flip < 10'000; ++flip) {
    const Sample& sample = all[flip % all.size()];
    auto bytes = save_framed(sample.list);
    // Half of the flips hit what comes first: shape, counts, the first segment.
    const std::size_t end = bytes.size() - 8;
    const std::size_t limit = flip % 2 == 0 ? end : std::min<std::size_t>(end, 96);
    const std::uint32_t bit = random.below(static_cast<std::uint32_t>(8 * limit));
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    fix_checksum(bytes);
    auto ledger = std::make_shared<Ledger>();
    const auto loaded = load(bytes, sample.list.shape(), ledger);
    // Nothing larger than the list itself and the room that lists have anyway.
    EXPECT_LT(ledger->total(), 200'000u);
    if (loaded) {
      ++taken;
      use(*loaded);
    } else {
      ++refused;
      EXPECT_EQ(ledger->total(), 0u);
      EXPECT_EQ(loaded.error().code, ErrorCode::kCorruptData) << loaded.error().message;
    }
  }
  EXPECT_GT(refused, 2000u);
  EXPECT_GT(taken, 500u);
}

TEST(SegmentListBytes, MessagesSayWhatIsWrongAndWhere) {
  Builder builder(Element::kF32);
  builder.full(3);
  const auto bytes = save_framed(builder.list());
  const auto expect = [&](std::size_t at, std::int32_t value, const std::string& text) {
    auto damaged = bytes;
    std::memcpy(damaged.data() + at, &value, sizeof(value));
    fix_checksum(damaged);
    const auto loaded = load(damaged, shape_of(Element::kF32));
    ASSERT_FALSE(loaded);
    EXPECT_NE(loaded.error().message.find(text), std::string::npos) << loaded.error().message;
  };
  expect(0, 7, "magic at byte 0");
  expect(8, 9, "version at byte 8 is 9");
  expect(12, 1, "kind at byte 12 is 1");
  expect(24, 1, "number of known codes at byte 24 is 1");
  expect(28, 3, "shape at byte 28 is of 3 heads");
  expect(40, 5, "element at byte 40 is 5");
  expect(44, 2, "capacity at byte");
  expect(48, 1 << 20, "capacity 1048576 of the segment");
  expect(52, 0, "tokens at byte 52 is 0");
  expect(56, 0x0502, "form of a side at byte 56 is 2");
  expect(59, -1, "position at byte 59 is -1");
  expect(63, 0x7fc00000, "row number at byte 63 is NaN");
  EXPECT_FALSE(load(bytes, shape_of(Element::kF16)));
}

}  // namespace
}  // namespace kvspan::testing
