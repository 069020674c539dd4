// SPDX-License-Identifier: Apache-2.0
// Codes of bands whose analysis follows from the synthesis and a diagonal metric, and their bytes.
#include "cache/bands_code.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/byte_stream.h"
#include "base/random.h"

namespace kvspan {
namespace {

constexpr std::size_t kWidth = 12;  // a head of 8 key and 4 value numbers

// B = M^-1/2 U, A = U'M^1/2, U a product of reflections.
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
        synthesis[i * kWidth + p] = float(u[i * kWidth + p] / root);
        analysis[p * kWidth + i] = float(u[i * kWidth + p] * root);
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
    EXPECT_NEAR(follows->key_weights(0)[i], given->key_weights(0)[i], 1e-5);
  }
  // Rounding moves what lies within some 1e-6 of a cell's bound to the neighbour: none of 4,000.
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    EXPECT_EQ(encode(*follows, seed), encode(*given, seed)) << seed;
  }
}

TEST(BandsCode, SavesAndLoadsBitForBit) {
  const Parts parts(4);
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
  EXPECT_TRUE(refused(with(spreads + 4 * code->layout().stored(), 1e20f)));
}

}  // namespace
}  // namespace kvspan
