// SPDX-License-Identifier: Apache-2.0
// Codes of bands whose analysis follows from the synthesis and a diagonal metric, and their bytes.
#include "cache/bands/bands_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/byte_stream.h"
#include "base/random.h"
#include "cache/bands/anchored_key.h"
#include "tests/cache/rounded_rows.h"

namespace kvspan {
namespace {

constexpr std::size_t kWidth = 12;  // a head of 8 key and 4 value numbers

// B = M^-1/2 U in f16, so that the code holds it as it is, U a product of reflections; A = B'M.
struct Parts {
  std::vector<float> analysis = std::vector<float>(kWidth * kWidth), synthesis = analysis;
  std::vector<float> weights = std::vector<float>(kWidth, 1.0f), key_mean, value_mean;
  std::vector<float> steps = std::vector<float>(kWidth), sigma = steps;
  std::vector<std::uint8_t> bits{2, 8, 0, 4, 3, 0, 4, 1, 4, 5, 0, 2};
  BandsParts parts;

  explicit Parts(std::uint64_t seed) : key_mean(8), value_mean(4) {
    Random random(seed);
    std::vector<double> u(kWidth * kWidth);
    for (std::size_t i = 0; i < kWidth; ++i) u[i * kWidth + i] = 1.0;
    for (int r = 0; r < 3; ++r) {
      std::vector<double> v(kWidth);
      double square = 0.0;
      for (double& x : v) x = random.normal(), square += x * x;
      for (std::size_t i = 0; i < kWidth; ++i) {
        double dot = 0.0;
        for (std::size_t j = 0; j < kWidth; ++j) dot += u[i * kWidth + j] * v[j];
        for (std::size_t j = 0; j < kWidth; ++j) u[i * kWidth + j] -= 2.0 * dot * v[j] / square;
      }
    }
    for (std::size_t i = 0; i < 8; ++i) weights[i] = 0.25f;
    for (std::size_t i = 0; i < kWidth; ++i) {
      const double root = std::sqrt(double{weights[i]});
      for (std::size_t p = 0; p < kWidth; ++p) {
        const float b = to_float(to_half(float(u[i * kWidth + p] / root)));
        synthesis[i * kWidth + p] = b;
        analysis[p * kWidth + i] = b * weights[i];
      }
      steps[i] = 0.3f + 0.1f * float(i);
      sigma[i] = 1.0f + 0.3f * float(i);
    }
    for (float& x : key_mean) x = random.normal();
    for (float& x : value_mean) x = random.normal();
    parts.key_dim = 8;
    parts.value_dim = 4;
    parts.anchor_block = 16;
    parts.rope.rotated_dims = 8;
    parts.rope.angles = {1.0, 0.1, 0.01, 0.001};
    parts.key_mean = key_mean;
    parts.value_mean = value_mean;
    parts.analysis = {analysis.data(), {kWidth, kWidth}};
    parts.synthesis = {synthesis.data(), {kWidth, kWidth}};
    parts.bits = bits;
    parts.steps = steps;
    parts.sigma = sigma;
  }
  BandsParts weighed() const {
    BandsParts out = parts;
    out.analysis = {};
    out.weights = weights;
    return out;
  }
};

struct Coded {
  std::vector<std::int8_t> codes;
  std::int8_t gain = 0;
  bool operator==(const Coded&) const = default;
};

Coded encode(const BandsCode& code, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> keys(8), values(4), z(kWidth), work(std::size_t(code.places()));
  for (float& x : keys) x = 2.0f * random.normal();
  for (float& x : values) x = 2.0f * random.normal();
  Coded out{std::vector<std::int8_t>(std::size_t(code.places())), 0};
  code.gather(keys.data(), values.data(), std::int32_t(seed), z.data());
  code.encode(z.data(), out.codes.data(), &out.gain, work.data());
  return out;
}

TEST(BandsCode, AnalysisFollowsFromADiagonalMetric) {
  const Parts parts(3);
  const auto given = BandsCode::create(parts.parts, nullptr).value();
  const auto follows = BandsCode::create(parts.weighed(), nullptr).value();
  EXPECT_LT(follows->bytes(), given->bytes());
  for (std::int32_t i = 0; i < 8; ++i) {
    // Squares of B's rows, whose numbers are off by 2^-11 of themselves at most.
    EXPECT_NEAR(follows->key_weights(0)[i] / given->key_weights(0)[i], 1.0, 0x1p-10);
  }
  // Rounding moves what lies within some 1e-6 of a cell's bound to the neighbour: none of 4,000.
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    EXPECT_EQ(encode(*follows, seed), encode(*given, seed)) << seed;
  }
}

// Rows of any size; one of zeros; one whose largest number rounds up to a power of two.
void spread_rows(Parts& parts) {
  for (std::size_t i = 0; i < kWidth; ++i) {
    for (std::size_t p = 0; p < kWidth; ++p) {
      float& b = parts.synthesis[i * kWidth + p];
      b = std::ldexp(b * 1.0003f, 10 * int(i) - 75);
      if (i == 3) b = 0.0f;
      if (i == 5 && p == 1) b = 63.9999f;
      if (i == 5 && p != 1) b = 0.001f * float(p);
    }
  }
}

TEST(BandsCode, RoundsTheSynthesisOnce) {
  Parts parts(6), same(6);
  spread_rows(parts);
  const auto code = BandsCode::create(parts.weighed(), nullptr).value();
  const std::vector<double> rounded =
      testing::rounded_rows(parts.synthesis, kWidth, code->layout());
  std::vector<float> keys(8 * std::size_t(code->places())), values(keys.size());
  code->widen(code->key_rows(0), 8, code->places(), keys.data());
  code->widen(code->value_rows(0), 4, code->places(), values.data());
  for (std::size_t p = 0; p < code->layout().stored(); ++p) {
    const std::size_t from = code->layout().order()[p], places = std::size_t(code->places());
    for (std::size_t j = 0; j < kWidth; ++j) {
      const float b = j < 8 ? keys[j * places + p] : values[(j - 8) * places + p];
      ASSERT_EQ(b, rounded[j * kWidth + from]) << j << ", " << from;
    }
  }
  // What was rounded stays as it is, and all that a code is made of follows from it.
  for (std::size_t i = 0; i < rounded.size(); ++i) same.synthesis[i] = float(rounded[i]);
  const auto again = BandsCode::create(same.weighed(), nullptr).value();
  EXPECT_EQ(again->checksum(), code->checksum());
  const auto tiles = std::size_t(code->place_tiles());
  EXPECT_TRUE(
      std::equal(code->key_scales(0), code->key_scales(0) + 16 * tiles, again->key_scales(0)));
  EXPECT_TRUE(
      std::equal(code->key_tiles(0), code->key_tiles(0) + tiles * 2 * 64, again->key_tiles(0)));
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(encode(*again, seed), encode(*code, seed));
  }
}

// As attention reads them, key rows of B times the steps are off by half a scale of their place, or
// where codes have many bits by half a part of it that the second digit has.
TEST(BandsCode, CodesWithManyBitsHaveKeyRowsInTwoDigits) {
  for (const bool many : {false, true}) {
    Parts of(7);
    std::fill(of.bits.begin(), of.bits.end(), std::uint8_t(many ? 6 : 2));
    of.parts.bits = of.bits;
    const auto code = BandsCode::create(of.weighed(), nullptr).value();
    ASSERT_EQ(code->move_digits(), many ? 2 : 1);
    const auto places = std::size_t(code->places());
    std::vector<float> exact(8 * places), read(8 * places);
    code->widen(code->key_rows(0), 8, code->places(), exact.data());
    code->read_key_rows(0, read.data());
    double worst = 0.0;  // in scales
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double scale = code->key_scales(0)[i % places];
      if (scale == 0.0) continue;
      worst =
          std::max(worst, std::abs(double{exact[i]} * code->steps()[i % places] - read[i]) / scale);
    }
    EXPECT_LE(worst, many ? 0.502 / kDigitBase : 0.5001);
    EXPECT_GT(worst, 0.1 / (many ? kDigitBase : 1.0f));
  }
}

TEST(BandsCode, RefusesASynthesisBeyondWhatItCanHold) {
  Parts parts(6);
  parts.synthesis[4 * kWidth + 1] = std::numeric_limits<float>::max();
  const auto code = BandsCode::create(parts.weighed(), nullptr);
  ASSERT_FALSE(code);
  EXPECT_NE(code.error().message.find("synthesis has 3.4028"), std::string::npos)
      << code.error().message;
}

// A code of values alone: beside B, in f16, only what a place or a row needs.
TEST(BandsCode, TakesTwoBytesForANumberOfTheSynthesis) {
  constexpr std::size_t d = 64;
  std::vector<float> identity(d * d), ones(d, 1.0f);
  for (std::size_t i = 0; i < d; ++i) identity[i * d + i] = 1.0f;
  const std::vector<std::uint8_t> bits(d, 2);
  BandsParts parts;
  parts.value_dim = d;
  parts.value_mean = parts.weights = parts.steps = parts.sigma = ones;
  parts.synthesis = {identity.data(), {d, d}};
  parts.bits = bits;
  const auto ledger = std::make_shared<Ledger>();
  const auto code = BandsCode::create(parts, ledger).value();
  // Weights, means and scales of rows; steps, their inverses, bounds and spreads of places.
  EXPECT_EQ(code->bytes(), 2 * d * d + 4 * (3 + 6) * d);
  EXPECT_EQ(ledger->bytes(MemoryKind::kShared), code->bytes());
}

// Tokens in any number, coded together, are coded as one by one, but for rounding: sums in another
// order move what lies within some 1e-6 of a cell's bound to the neighbour, none of these.
// What devices compute, run here.
TEST(BandsCode, AnchoredKeysOfDevicesAreThoseOfTheHost) {
  struct Two {
    float x, y;
  };
  Random random(9);
  Parts p(6);
  p.parts.rope.magnitude = 1.25f;
  const auto code = BandsCode::create(p.parts, nullptr).value();
  const std::size_t pairs = p.parts.rope.angles.size();
  for (const std::int32_t position : {0, 7, 8, 15, 16, 1000, 123459}) {
    std::vector<float> key(2 * pairs);
    for (float& x : key) x = random.normal();
    std::vector<Two> from;  // neighbours are pairs here
    for (std::size_t j = 0; j < pairs; ++j) from.push_back({key[2 * j], key[2 * j + 1]});
    code->to_key(0, position, key.data());
    const std::int32_t anchor = code->anchor_of(position);
    for (std::size_t j = 0; j < pairs; ++j) {
      const auto angles = [&](double positions) {
        const double angle = p.parts.rope.angles[j] * positions;
        return Two{float(std::cos(angle)), float(std::sin(angle))};
      };
      const Two mean{p.key_mean[2 * j], p.key_mean[2 * j + 1]};
      const Two got =
          anchored_key(from[j], mean, angles(position - anchor), angles(anchor), 1.25f);
      EXPECT_NEAR(got.x, key[2 * j], 2e-6) << position << ", pair " << j;
      EXPECT_NEAR(got.y, key[2 * j + 1], 2e-6) << position << ", pair " << j;
    }
  }
}

TEST(BandsCode, CodesTokensTogetherAsOneByOne) {
  const Parts parts(7);
  const auto code = BandsCode::create(parts.weighed(), nullptr).value();
  const auto places = std::size_t(code->places());
  Random random(8);
  for (std::size_t count = 1; count <= 17; ++count) {
    std::vector<float> z(count * kWidth), work(count * places), one(places);
    for (float& x : z) x = 2.0f * random.normal();
    std::vector<std::int8_t> codes(count * places), gains(count), values(count * places),
        alone(places);
    std::vector<double> squares(count);
    code->analyse(std::int32_t(count), z.data(), work.data(), squares.data());
    code->quantize(std::int32_t(count), work.data(), codes.data(), gains.data(), values.data());
    for (std::size_t t = 0; t < count; ++t) {
      std::int8_t gain = 0;
      code->encode(z.data() + t * kWidth, alone.data(), &gain, one.data());
      EXPECT_EQ(gain, gains[t]);
      EXPECT_TRUE(
          std::equal(alone.begin(), alone.end(), codes.begin() + std::ptrdiff_t(t * places)));
      for (std::size_t i = 0; i < places; ++i) {
        EXPECT_NEAR(one[i], work[t * places + i], 1e-5) << count << ", " << t;
      }
    }
  }
}

TEST(BandsCode, SavesAndLoadsBitForBit) {
  Parts parts(4);
  spread_rows(parts);
  const auto code = BandsCode::create(parts.weighed(), nullptr, MemoryKind::kBases).value();
  ByteWriter out;
  code->save(out);
  const auto ledger = std::make_shared<Ledger>();
  ByteReader in(out.bytes(), "code");
  const auto loaded = BandsCode::load(parts.weighed(), in, ledger);
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(in.left(), 0u);
  EXPECT_EQ((*loaded)->checksum(), code->checksum());
  EXPECT_EQ((*loaded)->bytes(), code->bytes());
  EXPECT_EQ(ledger->bytes(MemoryKind::kBases), code->bytes());
  ByteWriter again;
  (*loaded)->save(again);
  EXPECT_EQ(again.bytes(), out.bytes());
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Coded coded = encode(*code, seed);
    EXPECT_EQ(encode(**loaded, seed), coded);
    std::vector<float> c(std::size_t(code->places())), a(kWidth), b(kWidth);
    code->decode(coded.codes.data(), coded.gain, c.data());
    code->restore(c.data(), 5, a.data(), a.data() + 8);
    (*loaded)->restore(c.data(), 5, b.data(), b.data() + 8);
    EXPECT_EQ(a, b);
  }
}

TEST(BandsCode, LoadRefusesWhatSaveDoesNotWrite) {
  const Parts parts(5);
  const auto code = BandsCode::create(parts.weighed(), nullptr, MemoryKind::kBases).value();
  ByteWriter out;
  code->save(out);
  const auto refused = [&](std::vector<std::byte> bytes) {
    ByteReader in(bytes, "code");
    const auto loaded = BandsCode::load(parts.weighed(), in, nullptr);
    return !loaded && loaded.error().code == ErrorCode::kCorruptData &&
           loaded.error().message.find("byte") != std::string::npos;
  };
  const auto with = [&](std::size_t at, auto number) {
    std::vector<std::byte> bytes = out.bytes();
    std::memcpy(bytes.data() + at, &number, sizeof(number));
    return bytes;
  };
  for (std::size_t size = 0; size < out.bytes().size(); ++size) {
    EXPECT_TRUE(refused({out.bytes().begin(), out.bytes().begin() + std::ptrdiff_t(size)})) << size;
  }
  EXPECT_TRUE(refused(with(0, std::uint8_t{0}))) << "no bits, and then some";
  EXPECT_TRUE(refused(with(0, std::uint8_t{7})));
  EXPECT_TRUE(refused(with(11, std::uint8_t{8}))) << "bits rise";
  const std::size_t means = kWidth, weights = means + 4 * kWidth, steps = weights + 4 * kWidth;
  const std::size_t spreads = steps + 4 * code->layout().stored();
  EXPECT_TRUE(refused(with(means, std::nanf(""))));
  EXPECT_TRUE(refused(with(weights, 0.0f)));
  EXPECT_TRUE(refused(with(weights, -1.0f)));
  EXPECT_TRUE(refused(with(steps, 0.0f)));
  EXPECT_TRUE(refused(with(steps, 1e13f)));
  EXPECT_TRUE(refused(with(spreads, -1.0f)));
  const std::size_t scales = spreads + 4 * code->layout().stored(), numbers = scales + 4 * kWidth;
  for (const float scale : {1e20f, 3.0f, 0.0f, -1.0f, std::nanf("")}) {
    EXPECT_TRUE(refused(with(scales, scale))) << scale;
  }
  for (const float number : {2.0f, -2.0f, std::numeric_limits<float>::infinity()}) {
    EXPECT_TRUE(refused(with(numbers, to_half(number).bits))) << number;
  }
  EXPECT_TRUE(refused(with(numbers, std::uint16_t{0x7e00}))) << "not a number";
}

// Quads whose steps are far apart do not share a scale, of whatever widths they are; there are
// never more ranges than products take.
TEST(BandsCode, RangesHaveAlikeSteps) {
  constexpr std::size_t kNumbers = 1024;
  std::vector<float> synthesis(kNumbers * kNumbers), mean(kNumbers), weights(kNumbers, 1.0f),
      sigma(kNumbers, 1.0f);
  for (std::size_t i = 0; i < kNumbers; ++i) synthesis[i * kNumbers + i] = 1.0f;
  for (const double fall : {1.0, 2.0, 16.0, 1e6}) {
    std::vector<float> steps(kNumbers);
    for (std::size_t i = 0; i < kNumbers; ++i)
      steps[i] = float(std::pow(fall, -double(i) / kNumbers));
    BandsParts parts;
    parts.value_dim = kNumbers;
    parts.value_mean = mean;
    parts.synthesis = {synthesis.data(), {kNumbers, kNumbers}};
    const std::vector<std::uint8_t> bits(kNumbers, 8);
    parts.bits = bits;
    parts.steps = steps;
    parts.sigma = sigma;
    parts.weights = weights;
    const auto code = BandsCode::create(parts, nullptr).value();
    const auto ranges = code->scale_ranges();
    EXPECT_LE(ranges.size(), 2 * BandsCode::kMostRanges);
    EXPECT_EQ(ranges.size() % 2, 0u);
    std::int32_t next = 0;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const BandsCode::ScaleRange& range = ranges[i];
      EXPECT_EQ(range.first_quad, next);
      // All codes are wide: before each range comes a digit for what its own leaves of all its quads.
      EXPECT_EQ(range.rest, i % 2 == 0);
      if (range.rest) {
        EXPECT_EQ(range.quads, ranges[i + 1].quads);
        continue;
      }
      next += range.quads;
      // Compared 64 at a time.
      if (fall < 1e6) {
        EXPECT_LE(code->steps()[4 * range.first_quad], 2.7f * code->steps()[4 * (next - 16)]);
      }
    }
    EXPECT_EQ(next, 256);
    EXPECT_EQ(ranges.size() == 2, fall < 2.5);
  }
}

// Only the widest codes of a code with many bits meet a second digit of queries.
TEST(BandsCode, RestsAreOfTheWidestCodesOfFineOnes) {
  constexpr std::size_t kNumbers = 64;
  const std::vector<float> mean(kNumbers), ones(kNumbers, 1.0f);
  std::vector<float> synthesis(kNumbers * kNumbers);
  for (std::size_t i = 0; i < kNumbers; ++i) synthesis[i * kNumbers + i] = 1.0f;
  for (const std::size_t narrow : {1u, 5u}) {
    std::vector<std::uint8_t> bits(kNumbers, std::uint8_t(narrow));
    std::fill_n(bits.begin(), 12, std::uint8_t{8});
    BandsParts parts;
    parts.key_dim = kNumbers;
    parts.key_mean = mean;
    parts.synthesis = {synthesis.data(), {kNumbers, kNumbers}};
    parts.bits = bits;
    parts.steps = parts.sigma = parts.weights = ones;
    const auto code = BandsCode::create(parts, nullptr).value();
    EXPECT_EQ(code->fine(), narrow == 5);
    EXPECT_EQ(code->move_digits(), code->fine() ? 2 : 1);
    const auto ranges = code->scale_ranges();
    ASSERT_EQ(ranges.size(), code->fine() ? 2u : 1u);
    EXPECT_EQ(ranges.front().rest, code->fine());
    EXPECT_EQ(ranges.front().quads, code->fine() ? 3 : 16);
    EXPECT_EQ(ranges.back().first_quad, 0);
    EXPECT_EQ(ranges.back().quads, 16);
  }
}

}  // namespace
}  // namespace kvspan
