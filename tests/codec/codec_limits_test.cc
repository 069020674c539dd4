// SPDX-License-Identifier: Apache-2.0
// The edges of what a codec takes: nothing, zeros, constants, tiny and huge numbers, numbers that
// are none.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "codec/codec.h"
#include "every_level.h"
#include "stored_rows.h"

namespace kvspan {
namespace {

const char* const kCodecs[] = {"f32",
                               "f16",
                               "bf16",
                               "int8:row",
                               "int8:tensor",
                               "int4:group=32",
                               "int4:asym",
                               "int3:tile=2x5",
                               "int3:asym",
                               "int2:column=2",
                               "int2:tile=4,asym,scale=f32",
                               "q8_0",
                               "q4_0"};

TEST(CodecLimits, NumbersThatAreNotFiniteAreNamedAndNothingIsWritten) {
  at_every_level([&](CpuLevel) {
    for (const char* text : kCodecs) {
      for (const float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
            -std::numeric_limits<float>::infinity()}) {
        const Codec codec = codec_of(text, 37);
        std::vector<float> x(6 * 37, 1.0f);
        x[4 * 37 + 33] = bad;
        StoredRows stored(codec, 6);
        const StoredRows untouched = stored;
        const Status status = stored.encode(codec, x);
        ASSERT_FALSE(status);
        EXPECT_NE(status.error().message.find("row 4, column 33"), std::string::npos)
            << status.error().message;
        EXPECT_EQ(stored.payload, untouched.payload);
        EXPECT_EQ(stored.scales, untouched.scales);
        EXPECT_EQ(stored.l2, untouched.l2);
        EXPECT_EQ(stored.linf, untouched.linf);
      }
    }
  });
}

TEST(CodecLimits, NoRowsNeedNoBytes) {
  for (const char* text : kCodecs) {
    const Codec codec = codec_of(text, 37);
    StoredRows stored(codec, 0);
    EXPECT_EQ(codec.encoded_size(0).total(), 0u);
    EXPECT_TRUE(stored.encode(codec, {}));
    EXPECT_TRUE(stored.decode(codec).empty());
  }
}

TEST(CodecLimits, NoColumnsAreRefused) {
  EXPECT_FALSE(Codec::create({}, 0));
}

TEST(CodecLimits, ZerosComeBackAsZerosWithoutError) {
  for (const char* text : kCodecs) {
    const Codec codec = codec_of(text, 37);
    std::vector<float> x(3 * 37, 0.0f);
    for (std::size_t i = 0; i < x.size(); i += 2) x[i] = -0.0f;
    StoredRows stored(codec, 3);
    ASSERT_TRUE(stored.encode(codec, x));
    for (const float v : stored.decode(codec)) EXPECT_EQ(v, 0.0f) << text;
    for (const float e : stored.l2) EXPECT_EQ(e, 0.0f) << text;
    for (const float e : stored.linf) EXPECT_EQ(e, 0.0f) << text;
  }
}

// Symmetric: within half a scale of m, which for a constant m is at most m / 4 (int2). Asymmetric:
// the offset is within 2^-11 of m and the codes reach the rest, so the error is below 2^-11 m / 2.
TEST(CodecLimits, ConstantsAreWithinTheirBound) {
  for (const char* text : kCodecs) {
    for (const float m : {3.1415f, -0.001f, 60000.0f}) {
      const Codec codec = codec_of(text, 37);
      StoredRows stored(codec, 4);
      ASSERT_TRUE(stored.encode(codec, std::vector<float>(4 * 37, m)));
      const bool asymmetric = codec.spec().rule == ScaleRule::kAsymmetric;
      const double allowed = asymmetric ? 0x1p-12 : 0.2501;
      for (const float v : stored.decode(codec)) EXPECT_NEAR(v, m, allowed * std::abs(m)) << text;
    }
  }
}

TEST(CodecLimits, SubnormalsAndTinyNumbersKeepTheirBounds) {
  for (const char* text : kCodecs) {
    for (const float m : {1e-45f, 1e-40f, 1e-30f, 1e-20f, 1e-9f, 5e-8f}) {
      const Codec codec = codec_of(text, 37);
      std::vector<float> x(4 * 37);
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = m * static_cast<float>(static_cast<int>(i % 7) - 3);
      }
      StoredRows stored(codec, 4);
      ASSERT_TRUE(stored.encode(codec, x));
      const auto back = stored.decode(codec);
      for (std::size_t r = 0; r < 4; ++r) {
        double squares = 0;
        for (std::size_t c = 0; c < 37; ++c) {
          const double d = double{x[r * 37 + c]} - back[r * 37 + c];
          squares += d * d;
          EXPECT_LE(std::abs(d), stored.linf[r]) << text << " " << m;
          // At worst half the smallest scale of f16, or llama.cpp's code for a scale that became 0.
          EXPECT_LE(std::abs(d), std::max(0x1p-24, double{3.0f * m})) << text << " " << m;
        }
        EXPECT_LE(std::sqrt(squares), stored.l2[r]) << text << " " << m;
      }
    }
  }
}

struct Edge {
  const char* codec;
  float highest;  // encodes
  float beyond;   // does not
  const char* message;
};
// Limits of f16 scales: 65504 times what the largest code, or half the range, stands for.
const Edge kEdges[] = {
    {"f16", 65519.9f, 65520.0f, "row 1, column 2: 65520 exceeds f16"},
    {"bf16", 3.38e38f, 3.4e38f, "row 1, column 2: 3.4e+38 exceeds bf16"},
    {"int8:row", 65504.0f * 127, 65536.0f * 127, "rows 1..1, from column 0"},
    {"int4:group=2", 65504.0f * 7, 65536.0f * 7, "rows 1..1, from column 2"},
    {"int3:tile=2", 65504.0f * 4, 65536.0f * 4, "rows 0..1, from column 0"},
    {"int2:tensor", 65504.0f * 2, 65536.0f * 2, "rows 0..2, from column 0"},
    {"q8_0", 65504.0f * 127, 65536.0f * 127, "rows 1..1, from column 0"},
    {"q4_0", 65504.0f * 8, 65536.0f * 8, "rows 1..1, from column 0"},
    {"int8:asym", 65504.0f, 200000.0f, "scale=f32 holds them"},
    {"int8:scale=f32", 0x1p126f, 0x1.1p126f, "row 1, column 2: 9.038"},
    {"int2:asym,scale=f32", 0x1p126f, 0x1.1p126f, "exceeds 2^126, the limit of integer codes"},
};

TEST(CodecLimits, HugeNumbersEncodeUpToTheLimitAndFailBeyondNamingIt) {
  at_every_level([&](CpuLevel) {
    for (const Edge& edge : kEdges) {
      const Codec codec = codec_of(edge.codec, 3);
      // A constant row makes the asymmetric offset as large as it can be.
      std::vector<float> x{1, 2, 3, 0, 0, 0, 4, 5, 6};
      const bool asymmetric = codec.spec().rule == ScaleRule::kAsymmetric;
      const auto put = [&](float v) {
        x[5] = v;
        if (asymmetric) x[3] = x[4] = v;
      };
      put(edge.highest);
      StoredRows stored(codec, 3);
      const Status fine = stored.encode(codec, x);
      ASSERT_TRUE(fine) << edge.codec << ": " << fine.error().message;
      const auto back = stored.decode(codec);
      double squares = 0;
      for (std::size_t c = 0; c < 3; ++c) {
        ASSERT_TRUE(std::isfinite(back[3 + c])) << edge.codec;
        const double d = double{x[3 + c]} - back[3 + c];
        squares += d * d;
        EXPECT_LE(std::abs(d), stored.linf[1]) << edge.codec;
      }
      EXPECT_LE(std::sqrt(squares), stored.l2[1]) << edge.codec;
      EXPECT_TRUE(std::isfinite(stored.l2[1])) << edge.codec;
      put(edge.beyond);
      const StoredRows before = stored;
      const Status status = stored.encode(codec, x);
      ASSERT_FALSE(status) << edge.codec;
      EXPECT_NE(status.error().message.find(edge.message), std::string::npos)
          << edge.codec << ": " << status.error().message;
      EXPECT_EQ(stored.payload, before.payload);
      EXPECT_EQ(stored.scales, before.scales);
    }
  });
}

}  // namespace
}  // namespace kvspan
