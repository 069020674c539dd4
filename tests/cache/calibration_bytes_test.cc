// SPDX-License-Identifier: Apache-2.0
// Calibrations as bytes: what is written is read back, and no damage goes unnoticed or is believed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/byte_stream.h"
#include "kvspan/calibration.h"
#include "tests/base/sweep.h"
#include "tests/cache/random_calibration.h"

namespace kvspan::testing {
namespace {

CacheShape small_shape() {
  LayerShape layer;
  layer.query_heads = 4;
  layer.kv_heads = 2;
  layer.key_dim = 8;
  layer.value_dim = 4;
  layer.logit_scale = 0.5f;
  layer.rope = {Rope::Pairs::kHalves, 6, {1.0, 0.3, 0.01}, 1.25f};
  LayerShape narrow = layer;
  narrow.rope = {};
  narrow.kv_heads = 1;
  narrow.value_dim = 6;
  return {{layer, narrow, layer}};
}

TEST(CalibrationBytes, ReadBackWhatWasWritten) {
  const Calibration written = random_calibration(small_shape());
  const auto bytes = encode_calibration(written);
  ASSERT_TRUE(bytes);
  const auto read = decode_calibration(*bytes, "it");
  ASSERT_TRUE(read) << read.error().message;
  expect_equal(*read, written);
  EXPECT_TRUE(check_calibration(small_shape(), *read));
  EXPECT_EQ(encode_calibration(*read).value(), *bytes);
  std::uint64_t last = 0;
  std::memcpy(&last, bytes->data() + bytes->size() - 8, 8);
  EXPECT_EQ(read->checksum, last);
}

// Moments between layers are of this layer's rows and the following one's columns, one array for
// each layer that follows.
TEST(CalibrationBytes, CrossMomentsAreHeldAgainstTheShape) {
  const CacheShape shape = small_shape();
  const Calibration fits = random_calibration(shape);
  ASSERT_EQ(fits.layers[0].cross_moments.size(), 2u);
  ASSERT_EQ(fits.layers[0].cross_moments[0].size(), std::size_t{24 * 14});
  ASSERT_EQ(fits.layers[1].cross_moments.size(), 1u);
  ASSERT_TRUE(fits.layers[2].cross_moments.empty());
  EXPECT_TRUE(check_calibration(shape, fits));
  struct Spoilt {
    std::function<void(Calibration&)> spoil;
    std::vector<std::string> words;
  };
  const Spoilt all[] = {
      {[](Calibration& c) { c.neighbours = -1; }, {"neighbours is -1", "0 or more"}},
      {[](Calibration& c) { c.neighbours = 1; }, {"layer 0", "cross_moments has 2", ": 1"}},
      {[](Calibration& c) { c.neighbours = 0; }, {"layer 0", "cross_moments has 2", ": 0"}},
      {[](Calibration& c) { c.layers[1].cross_moments.clear(); },
       {"layer 1", "cross_moments has 0", ": 1"}},
      {[](Calibration& c) { c.layers[2].cross_moments.emplace_back(); },
       {"layer 2", "cross_moments has 1", ": 0"}},
      {[](Calibration& c) { c.layers[0].cross_moments[1].pop_back(); },
       {"layer 0", "cross_moments[1] has 575", "576"}},
      {[](Calibration& c) { c.layers[1].cross_moments[0][17] = NAN; },
       {"layer 1", "cross_moments[0][17]", "finite"}},
  };
  for (const Spoilt& one : all) {
    Calibration calibration = fits;
    one.spoil(calibration);
    const Status status = check_calibration(shape, calibration);
    ASSERT_FALSE(status) << one.words.front();
    for (const std::string& word : one.words) {
      EXPECT_NE(status.error().message.find(word), std::string::npos) << status.error().message;
    }
  }
  // They are not symmetric: below 0 is allowed everywhere.
  Calibration negative = fits;
  negative.layers[0].cross_moments[1][0] = -1.0f;
  EXPECT_TRUE(check_calibration(shape, negative));
  // More neighbours than there are layers: those that there are.
  Calibration more = fits;
  more.neighbours = 7;
  EXPECT_TRUE(check_calibration(shape, more));
}

TEST(CalibrationBytes, WithoutNeighboursNoCrossMomentsAreWritten) {
  const CacheShape shape = small_shape();
  Calibration written = random_calibration(shape);
  const std::size_t with = encode_calibration(written).value().size();
  written.neighbours = 0;
  for (LayerCalibration& layer : written.layers) layer.cross_moments.clear();
  const auto bytes = encode_calibration(written).value();
  EXPECT_LT(bytes.size(), with);
  const auto read = decode_calibration(bytes, "it");
  ASSERT_TRUE(read) << read.error().message;
  expect_equal(*read, written);
  EXPECT_TRUE(check_calibration(shape, *read));
}

// Fewer than the header says, and a number of neighbours that is none.
TEST(CalibrationBytes, CrossMomentsThatAreNotThereAreNamed) {
  Calibration calibration = random_calibration(small_shape());
  const auto message = [&] {
    const auto read = decode_calibration(encode_calibration(calibration).value(), "its-name");
    if (read) return std::string("read");
    EXPECT_EQ(read.error().code, ErrorCode::kCorruptData);
    return read.error().message;
  };
  calibration.layers[1].cross_moments.clear();
  EXPECT_NE(message().find("layer.1.cross_moment.0 is missing"), std::string::npos) << message();
  calibration.neighbours = -1;
  EXPECT_NE(message().find("kvspan.calibration.neighbours is 4294967295; allowed"),
            std::string::npos)
      << message();
}

TEST(CalibrationBytes, NoticesEveryCutAndEveryFlip) {
  const auto bytes = encode_calibration(random_calibration(small_shape()));
  ASSERT_TRUE(bytes);
  ASSERT_TRUE(decode_calibration(*bytes, "whole"));
  std::mt19937 random(11);
  const auto refused = [](std::span<const std::byte> damaged) {
    const auto read = decode_calibration(damaged, "its-name");
    EXPECT_FALSE(read);
    if (read) return;
    EXPECT_EQ(read.error().code, ErrorCode::kCorruptData) << read.error().message;
    EXPECT_NE(read.error().message.find("its-name"), std::string::npos);
  };
  for (std::size_t length : {std::size_t{0}, std::size_t{3}, std::size_t{24}, std::size_t{40}}) {
    refused(std::span(*bytes).first(length));
  }
  for (int i = 0; i < 200; ++i) {
    refused(std::span(*bytes).first(random() % bytes->size()));
    std::vector<std::byte> flipped = *bytes;
    flipped[random() % flipped.size()] ^= std::byte{1} << (random() % 8);
    refused(flipped);
  }
}

// Bytes whose checksum is right whatever else they say: refused, or read as what they say. The
// latter then writes the same bytes, or, where they moved the place of an array, those of what lies
// there, in order.
TEST(CalibrationBytes, ForgedHeadersAreRefusedOrReadAsTheySay) {
  const CacheShape shape = small_shape();
  const auto bytes = encode_calibration(random_calibration(shape)).value();
  const std::size_t header = 4096;
  ASSERT_GT(bytes.size(), header);
  std::mt19937 random(5);
  int refused = 0, as_said = 0;
  for (std::size_t i = 0; i < sweep(4000); ++i) {
    std::vector<std::byte> forged = bytes;
    const std::size_t at = random() % header;
    forged[at] = static_cast<std::byte>(random() % 3 == 0 ? 0xff : random());
    const std::uint64_t sum = crc64(std::span(forged).first(forged.size() - 8));
    std::memcpy(forged.data() + forged.size() - 8, &sum, 8);
    const auto read = decode_calibration(forged, "forged");
    if (!read || !check_calibration(shape, *read)) {
      ++refused;
      continue;
    }
    const auto again = encode_calibration(*read);
    ASSERT_TRUE(again) << again.error().message;
    as_said += *again == forged;
    const auto twice = decode_calibration(*again, "again");
    ASSERT_TRUE(twice) << "byte " << at << ": " << twice.error().message;
    EXPECT_TRUE(encode_calibration(*twice).value() == *again) << "byte " << at;
    EXPECT_EQ(again->size(), forged.size()) << "byte " << at;
  }
  EXPECT_GT(refused, 0) << "names, counts and places that do not fit";
  EXPECT_GT(as_said, 0) << "numbers of the model";
}

TEST(CalibrationBytes, AnotherVersionIsNotReadAndBothAreNamed) {
  const auto bytes = encode_calibration(random_calibration(small_shape())).value();
  ASSERT_TRUE(with_version(bytes, 6) == bytes);
  for (const std::uint32_t version : {5u, 7u}) {
    const auto read = decode_calibration(with_version(bytes, version), "its-name");
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, ErrorCode::kUnsupported);
    for (const std::string& part : {std::string("its-name"), "version " + std::to_string(version),
                                    std::string("version 6")}) {
      EXPECT_NE(read.error().message.find(part), std::string::npos) << read.error().message;
    }
  }
}

// As files were written before they said how keys were rotated.
TEST(CalibrationBytes, RopeMayBeMissingButNotHalfThere) {
  const CacheShape shape = small_shape();
  const Calibration with = random_calibration(shape);
  Calibration without = with;
  without.ropes.clear();
  const auto bytes = encode_calibration(without).value();
  const auto read = decode_calibration(bytes, "it");
  ASSERT_TRUE(read) << read.error().message;
  expect_equal(*read, without);
  EXPECT_TRUE(check_calibration(shape, *read));
  EXPECT_TRUE(encode_calibration(*read).value() == bytes);
  const auto message = [](const Calibration& calibration) {
    const auto spoilt = decode_calibration(encode_calibration(calibration).value(), "its-name");
    if (spoilt) return std::string("read");
    EXPECT_EQ(spoilt.error().code, ErrorCode::kCorruptData);
    return spoilt.error().message;
  };
  const auto expect_named = [&](const Calibration& calibration, const std::string& part) {
    const std::string found = message(calibration);
    EXPECT_NE(found.find(part), std::string::npos) << found;
  };
  Calibration spoilt = with;
  spoilt.ropes.pop_back();
  expect_named(spoilt, "3 layers, but 2 pairs");
  spoilt = with;
  spoilt.ropes[0].rotated_dims = 4;
  expect_named(spoilt, "6 angles of RoPE for 5 pairs");
  spoilt.ropes[0].rotated_dims = 600;
  expect_named(spoilt, "600 dimensions; allowed: 0 or 1, and an even number up to 12");
  spoilt = with;
  spoilt.ropes[2].pairs = static_cast<Rope::Pairs>(2);
  expect_named(spoilt, "RoPE of layer 2 has pairs of kind 2");
  spoilt = with;
  spoilt.ropes[2].angles[1] = NAN;
  expect_named(spoilt, "layer 2: rope angle 1 is nan");
  spoilt = with;
  spoilt.ropes[0].magnitude = 0.0f;
  expect_named(spoilt, "layer 0: rope magnitude is 0");
}

TEST(CalibrationBytes, LayersThatAreElsewhereAreNotWritten) {
  Calibration calibration = random_calibration(small_shape());
  calibration.read_layer = [](std::size_t) -> Result<LayerCalibration> {
    return Error{ErrorCode::kIo, "not asked"};
  };
  EXPECT_FALSE(encode_calibration(calibration));
}

}  // namespace
}  // namespace kvspan::testing
