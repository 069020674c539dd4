// SPDX-License-Identifier: Apache-2.0
// Saving and loading every tracker: round trips, and bytes that are truncated, damaged or forged.
#include <gtest/gtest.h>

#include <cstring>

#include "base/byte_stream.h"
#include "subspace/frequent_directions.h"
#include "subspace/gram_tracker.h"
#include "subspace/oja.h"
#include "tests/base/allocation_watch.h"
#include "tests/subspace/streams.h"

namespace kvspan {
namespace {

Matrix sample_rows(std::size_t n, std::size_t d, std::uint64_t seed) {
  Random random(seed);
  return falling_rows(n, d, 0.8, random);
}

std::vector<std::unique_ptr<Tracker>> sample_trackers() {
  std::vector<std::unique_ptr<Tracker>> all;
  all.push_back(FrequentDirections::create(9, {.sketch_rows = 4}, nullptr).value());
  all.push_back(OjaTracker::create(9, {.rank = 3, .batch_rows = 8}, std::nullopt, nullptr).value());
  all.push_back(OjaTracker::create(9, {.rank = 2, .norm = OjaNorm::kToken, .batch_rows = 0},
                                   std::nullopt, nullptr)
                    .value());
  all.push_back(GramTracker::create(9, {}, nullptr).value());
  all.push_back(GramTracker::create(9, {.decay = 0.9, .centred = true}, nullptr).value());
  for (auto& tracker : all) EXPECT_TRUE(tracker->update(sample_rows(29, 9, 1).view()));
  return all;
}

// Everything a caller may do with a tracker; a damaged one must not fall over.
void use(Tracker& tracker) {
  for (std::size_t r = 0; r <= tracker.max_rank(); ++r) {
    (void)tracker.basis(r);
    (void)tracker.certificate(r);
  }
  (void)tracker.spectrum();
  EXPECT_TRUE(tracker.update(sample_rows(20, tracker.dim(), 2).view()));
  const auto copy = tracker.clone(nullptr);
  EXPECT_TRUE(tracker.merge(*copy));
  (void)tracker.basis(tracker.max_rank());
}

void fix_checksum(std::vector<std::byte>& bytes) {
  const std::uint64_t sum = crc64(std::span(bytes).first(bytes.size() - 8));
  std::memcpy(bytes.data() + bytes.size() - 8, &sum, 8);
}

TEST(TrackerBytes, LoadingGivesAnEqualTrackerWithTheSameFuture) {
  for (const auto& tracker : sample_trackers()) {
    const auto bytes = tracker->save();
    auto ledger = std::make_shared<Ledger>();
    auto loaded = load_tracker(bytes, ledger);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ((*loaded)->kind(), tracker->kind());
    EXPECT_EQ((*loaded)->save(), bytes);
    EXPECT_EQ((*loaded)->bytes(), tracker->bytes());
    EXPECT_EQ(ledger->bytes(MemoryKind::kSketches), tracker->bytes());
    const auto copy = tracker->clone(nullptr);
    EXPECT_EQ(copy->save(), bytes);
    for (Tracker* each : {tracker.get(), loaded->get(), copy.get()}) {
      ASSERT_TRUE(each->update(sample_rows(50, 9, 3).view()));
    }
    EXPECT_EQ((*loaded)->save(), tracker->save());
    EXPECT_EQ(copy->save(), tracker->save());
  }
}

TEST(TrackerBytes, EveryTruncationIsRefusedWithItsPlace) {
  for (const auto& tracker : sample_trackers()) {
    const auto bytes = tracker->save();
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      const auto loaded = load_tracker(std::span(bytes).first(size), nullptr);
      ASSERT_FALSE(loaded) << size;
      EXPECT_EQ(loaded.error().code, ErrorCode::kCorruptData);
      EXPECT_NE(loaded.error().message.find("at byte"), std::string::npos);
    }
    auto longer = bytes;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(load_tracker(longer, nullptr));
  }
}

TEST(TrackerBytes, TenThousandFlippedBitsAreAllFound) {
  Random random(4);
  const auto trackers = sample_trackers();
  std::vector<std::vector<std::byte>> saved;
  for (const auto& tracker : trackers) saved.push_back(tracker->save());
  for (int flip = 0; flip < 10'000; ++flip) {
    const auto& original = saved[static_cast<std::size_t>(flip) % saved.size()];
    auto bytes = original;
    const std::uint32_t bits = 1 + random.below(3);
    for (std::uint32_t i = 0; i < bits; ++i) {
      const std::uint32_t bit = random.below(static_cast<std::uint32_t>(8 * bytes.size()));
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    const auto loaded = load_tracker(bytes, nullptr);
    if (loaded) {
      EXPECT_EQ((*loaded)->save(), original);  // a bit flipped twice
    } else {
      EXPECT_FALSE(loaded.error().message.empty());
    }
  }
}

// The checksum made right again: what is left are the checks of each field. Numbers may differ, but
// whatever loads must be usable.
TEST(TrackerBytes, ForgedFieldsAreRefusedOrHarmless) {
  Random random(5);
  const auto trackers = sample_trackers();
  std::size_t refused = 0;
  for (int flip = 0; flip < 4'000; ++flip) {
    auto bytes = trackers[static_cast<std::size_t>(flip) % trackers.size()]->save();
    // Half of the flips hit the fields before the arrays.
    const auto limit = flip % 2 ? static_cast<std::uint32_t>(bytes.size() - 8) : 88u;
    const std::uint32_t bit = random.below(8 * limit);
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    fix_checksum(bytes);
    auto loaded = load_tracker(bytes, nullptr);
    if (loaded) {
      use(**loaded);
    } else {
      ++refused;
      EXPECT_EQ(loaded.error().code, ErrorCode::kCorruptData);
    }
  }
  EXPECT_GT(refused, 500u);
}

TEST(TrackerBytes, ForgedSizesAllocateNothingLarge) {
  for (const auto& tracker : sample_trackers()) {
    for (const std::size_t field : {16u, 24u, 28u, 32u, 36u, 40u, 48u, 56u}) {
      for (const std::uint32_t value : {0u, 9u, 2048u, 4096u, 0x7fffffffu, 0xffffffffu}) {
        auto bytes = tracker->save();
        std::memcpy(bytes.data() + field, &value, 4);
        fix_checksum(bytes);
        testing::begin_allocation_watch();
        const auto loaded = load_tracker(bytes, nullptr);
        // Oja's batch may be up to 4096 rows of 9, whatever has been gathered of it.
        const std::size_t most = loaded ? 4096u * 9 * 4 : 65536;
        EXPECT_LE(testing::largest_allocation(), most) << "field " << field << " = " << value;
      }
    }
  }
  // The watch sees what it should.
  testing::begin_allocation_watch();
  const auto large = FrequentDirections::create(1024, {.sketch_rows = 512}, nullptr);
  EXPECT_EQ(testing::largest_allocation(), std::size_t{4} << 20);
}

TEST(TrackerBytes, MessagesSayWhatIsWrongAndWhere) {
  const auto bytes = sample_trackers()[0]->save();
  const auto expect = [&](std::size_t at, std::byte value, bool fix, const std::string& text) {
    auto damaged = bytes;
    damaged[at] = value;
    if (fix) fix_checksum(damaged);
    const auto loaded = load_tracker(damaged, nullptr);
    ASSERT_FALSE(loaded);
    EXPECT_NE(loaded.error().message.find(text), std::string::npos) << loaded.error().message;
  };
  expect(0, std::byte{'X'}, true, "magic at byte 0");
  expect(8, std::byte{9}, true, "version at byte 8 is 9");
  expect(12, std::byte{77}, true, "kind at byte 12 is 77");
  expect(16, std::byte{1}, true, "payload size at byte 16");
  expect(100, std::byte{0xab}, false, "checksum at byte");
  expect(28, std::byte{200}, true, "200 sketch rows; 1 to the dimension 9 are allowed");
  expect(32, std::byte{50}, true, "held rows at byte 32 is 50");
  expect(47, std::byte{0xff}, false, "checksum");
  expect(83, std::byte{0x7f}, true, "sketch at byte 80");  // an entry of about 1e38
}

TEST(Crc64, IsThePublishedOne) {
  const char text[] = "123456789";
  EXPECT_EQ(crc64(std::as_bytes(std::span(text, 9))), 0x995dc9bbdf1939faull);  // CRC-64/XZ
}

}  // namespace
}  // namespace kvspan
