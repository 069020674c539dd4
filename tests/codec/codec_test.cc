// SPDX-License-Identifier: Apache-2.0
// Codecs against plain double-precision code that shares nothing with them but the stored bytes.
#include "codec/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/random.h"
#include "every_level.h"
#include "stored_rows.h"

namespace kvspan {
namespace {

const char* const kUnits[] = {"row",     "group=32",   "group=7",   "group=64",
                              "tile=4",  "tile=16x20", "column=8",  "column",
                              "head=32", "tensor",     "tile=3x32", "group=1"};
struct Shape {
  std::size_t rows, cols;
};
constexpr Shape kShapes[] = {{1, 1}, {5, 64}, {33, 37}, {20, 96}, {3, 600}};

std::vector<float> random_rows(Random& random, const Shape& shape) {
  std::vector<float> x(shape.rows * shape.cols);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double level = static_cast<double>(i / shape.cols % 3);  // a mean, for asymmetric codes
    x[i] = static_cast<float>(std::pow(10.0, level - 1) * (level + random.normal()));
  }
  return x;
}

// The value of a half from its bits, by the definition of the format.
double half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude =
      exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  return bits & 0x8000 ? -magnitude : magnitude;
}

double stored_number(const CodecSpec& spec, const std::byte* p, std::size_t at) {
  if (spec.scale == ScaleType::kF32) {
    float v;
    std::memcpy(&v, p + 4 * at, 4);
    return v;
  }
  std::uint16_t bits;
  std::memcpy(&bits, p + 2 * at, 2);
  return half_value(bits);
}

// Checks one unit: the stored scale is the smallest allowed one that reaches all numbers, each code
// is a nearest level, and what is decoded is that level rounded to f32.
class UnitOracle {
 public:
  UnitOracle(const CodecSpec& spec, double scale, double offset) : spec_(spec), scale_(scale) {
    bits_ = bits_of(spec.kind);
    const int n = 1 << (bits_ - 1);
    const bool asymmetric = spec.rule == ScaleRule::kAsymmetric;
    const bool middle = !asymmetric && bits_ <= 3;
    lowest_ = asymmetric || middle ? -n : 1 - n;
    offset_ = asymmetric ? offset : middle ? 0.5 * scale : 0.0;
  }

  void check_scale(double low, double high) const {
    const int n = 1 << (bits_ - 1);
    // Relative step of the stored number, twice 2^-11 for f16 as scales are rounded upwards; the
    // absolute one is that of subnormal halves.
    const bool half = spec_.scale == ScaleType::kF16;
    const double relative = half ? 0x1p-10 : 0x1p-22, absolute = half ? 0x1p-24 : 0x1p-126;
    double wanted = std::max(-low, high) / (bits_ <= 3 ? n : n - 1);
    if (spec_.rule == ScaleRule::kAsymmetric) {
      const double middle = low + n * (high - low) / (2.0 * n - 1);
      // Computed in f32 from the ends, which may cancel.
      const double cancelled = 0x1p-22 * std::max(std::abs(low), std::abs(high));
      EXPECT_NEAR(offset_, middle, relative * std::abs(middle) + absolute + cancelled);
      wanted = std::max((high - offset_) / (n - 1), (offset_ - low) / n);
    }
    EXPECT_GE(scale_, wanted * (1 - 0x1p-22));
    EXPECT_LE(scale_, wanted * (1 + relative) + absolute);
  }

  void check_number(double x, int code, float decoded) const {
    const int highest = (1 << (bits_ - 1)) - 1;
    ASSERT_GE(code, lowest_);
    ASSERT_LE(code, highest);
    const double level = offset_ + scale_ * code;
    EXPECT_EQ(decoded, static_cast<float>(level));
    double nearest = std::numeric_limits<double>::infinity();
    for (int v = lowest_; v <= highest; ++v) {
      nearest = std::min(nearest, std::abs(x - (offset_ + scale_ * v)));
    }
    // The quotient is taken in f32, by the inverse: three roundings of a number of at most 128.
    const double slack = 0x1p-22 * (std::abs(x) + std::abs(offset_));
    EXPECT_LE(std::abs(x - level), nearest + slack);
    EXPECT_LE(std::abs(x - level), 0.5 * scale_ + slack);
  }

 private:
  CodecSpec spec_;
  double scale_, offset_;
  int bits_, lowest_;
};

void check_against_oracle(const Codec& codec, const std::vector<float>& x, std::size_t rows) {
  const CodecSpec& spec = codec.spec();
  const std::size_t cols = codec.cols();
  StoredRows stored(codec, rows);
  ASSERT_TRUE(stored.encode(codec, x));
  const auto back = stored.decode(codec);
  std::vector<std::int8_t> codes(rows * cols);
  codec.decode_codes(stored.payload, 0, {codes.data(), {rows, cols}});
  const std::size_t high = spec.unit_rows ? spec.unit_rows : rows;
  const std::size_t wide = spec.unit_cols ? spec.unit_cols : cols;
  const std::size_t groups = (cols + wide - 1) / wide;
  const bool asymmetric = spec.rule == ScaleRule::kAsymmetric;
  const std::size_t number_bytes = spec.scale == ScaleType::kF32 ? 4 : 2;
  for (std::size_t r0 = 0; r0 < rows; r0 += high) {
    const std::byte* tile =
        stored.scales.data() + r0 / high * groups * number_bytes * (asymmetric ? 2 : 1);
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t r1 = std::min(rows, r0 + high), c1 = std::min(cols, (g + 1) * wide);
      float least = std::numeric_limits<float>::infinity(), most = -least;
      for (std::size_t r = r0; r < r1; ++r) {
        for (std::size_t c = g * wide; c < c1; ++c) {
          least = std::min(least, x[r * cols + c]);
          most = std::max(most, x[r * cols + c]);
        }
      }
      const UnitOracle oracle(spec, stored_number(spec, tile, g),
                              asymmetric ? stored_number(spec, tile, groups + g) : 0.0);
      oracle.check_scale(least, most);
      for (std::size_t r = r0; r < r1; ++r) {
        for (std::size_t c = g * wide; c < c1; ++c) {
          oracle.check_number(x[r * cols + c], codes[r * cols + c], back[r * cols + c]);
        }
      }
    }
  }
}

TEST(Codec, IntegerKindsFollowTheirFormulasForEveryUnit) {
  Random random(41);
  for (const char* kind : {"int8", "int4", "int3", "int2"}) {
    for (const char* unit : kUnits) {
      for (const char* rest : {"sym", "asym", "sym,scale=f32", "asym,scale=f32"}) {
        const std::string text = std::string(kind) + ":" + unit + "," + rest;
        for (const Shape& shape : kShapes) {
          SCOPED_TRACE(text + ", cols " + std::to_string(shape.cols));
          const auto x = random_rows(random, shape);
          check_against_oracle(codec_of(text, shape.cols), x, shape.rows);
          if (::testing::Test::HasFailure()) return;  // one report is enough
        }
      }
    }
  }
}

// Payload, scales and decoded rows, bit for bit; bounds of every level hold the same residual.
TEST(Codec, EveryLevelStoresTheSameBytes) {
  Random random(42);
  for (const char* kind : {"f16", "bf16", "q8_0", "q4_0", "int8", "int4", "int3", "int2"}) {
    for (const char* unit : kUnits) {
      for (const char* rest : {"sym", "asym"}) {
        std::string text = kind;
        if (text.starts_with("int")) text += std::string(":") + unit + "," + rest;
        for (const Shape& shape : kShapes) {
          SCOPED_TRACE(text + ", cols " + std::to_string(shape.cols));
          const auto x = random_rows(random, shape);
          ASSERT_TRUE(force_cpu_level(CpuLevel::kReference));
          const Codec reference = codec_of(text, shape.cols);
          StoredRows expected(reference, shape.rows);
          ASSERT_TRUE(expected.encode(reference, x));
          at_every_level([&](CpuLevel) {
            const Codec codec = codec_of(text, shape.cols);
            StoredRows stored(codec, shape.rows);
            ASSERT_TRUE(stored.encode(codec, x));
            EXPECT_EQ(stored.payload, expected.payload);
            EXPECT_EQ(stored.scales, expected.scales);
            EXPECT_EQ(stored.decode(codec), expected.decode(reference));
            for (std::size_t r = 0; r < shape.rows; ++r) {
              EXPECT_NEAR(stored.l2[r], expected.l2[r], 2e-5 * expected.l2[r]);
              EXPECT_EQ(stored.linf[r], expected.linf[r]);
            }
          });
        }
      }
    }
  }
}

TEST(Codec, FloatingPointKindsStoreTheNearestValue) {
  Random random(43);
  const Shape shape{7, 51};
  const auto x = random_rows(random, shape);
  for (const char* kind : {"f32", "f16", "bf16"}) {
    const Codec codec = codec_of(kind, shape.cols);
    StoredRows stored(codec, shape.rows);
    ASSERT_TRUE(stored.encode(codec, x));
    const auto back = stored.decode(codec);
    const double half_step = bits_of(codec.spec().kind) == 32       ? 0
                             : codec.spec().kind == CodecKind::kF16 ? 0x1p-12
                                                                    : 0x1p-9;
    for (std::size_t i = 0; i < x.size(); ++i) {
      // Half the spacing of the binade x lies in; f16 subnormals are spaced by 2^-24.
      const double binade = std::exp2(std::floor(std::log2(std::abs(x[i])))) * 2;
      EXPECT_LE(std::abs(double{x[i]} - back[i]),
                std::max(half_step * binade, half_step ? 0x1p-25 : 0));
    }
  }
}

TEST(Codec, DecodesAnyRangeOfRowsAndLeavesPaddingAlone) {
  Random random(44);
  const Shape shape{23, 37};
  const auto x = random_rows(random, shape);
  for (const char* text : {"f32", "f16", "int8:row", "int4:group=32,asym", "int3:tile=5x9",
                           "int2:column=4,asym", "int4:tensor", "q4_0"}) {
    const Codec codec = codec_of(text, shape.cols);
    StoredRows stored(codec, shape.rows);
    ASSERT_TRUE(stored.encode(codec, x));
    const auto all = stored.decode(codec);
    for (std::size_t first = 0; first <= shape.rows; first += 3) {
      for (std::size_t count = 0; first + count <= shape.rows; count += 4) {
        const std::size_t stride = shape.cols + 2;
        std::vector<float> out(count * stride, 7.5f);
        codec.decode(stored.payload, stored.scales, first,
                     {out.data(), {count, shape.cols}, {stride, 1}});
        for (std::size_t i = 0; i < out.size(); ++i) {
          const std::size_t r = i / stride, c = i % stride;
          ASSERT_EQ(out[i], c < shape.cols ? all[(first + r) * shape.cols + c] : 7.5f) << text;
        }
      }
    }
  }
}

// Whole tiles may be appended one call at a time: the bytes are those of one call.
TEST(Codec, TilesEncodedOneByOneEqualOneCall) {
  Random random(45);
  const Shape shape{24, 40};
  const auto x = random_rows(random, shape);
  for (const char* text : {"int8:row", "int4:group=8,asym", "int3:tile=8", "int2:column=4,asym"}) {
    const Codec codec = codec_of(text, shape.cols);
    StoredRows once(codec, shape.rows), pieces(codec, shape.rows);
    ASSERT_TRUE(once.encode(codec, x));
    for (std::size_t first = 0; first < shape.rows; first += 8) {
      const EncodedSize size = codec.encoded_size(8);
      ASSERT_TRUE(codec.encode(
          {x.data() + first * shape.cols, {8, shape.cols}},
          std::span(pieces.payload).subspan(first * codec.row_bytes(), size.payload_bytes),
          std::span(pieces.scales)
              .subspan(codec.tile_of(first) * codec.tile_scale_bytes(), size.scale_bytes)));
    }
    EXPECT_EQ(pieces.payload, once.payload) << text;
    EXPECT_EQ(pieces.scales, once.scales) << text;
  }
}

TEST(Codec, ScalesAndCodesReadInPlaceGiveTheDecodedNumbers) {
  Random random(46);
  const Shape shape{10, 70};
  const auto x = random_rows(random, shape);
  for (const char* text : {"int8:row", "int4:group=32", "int3:group=32", "int2:tile=4x10,asym"}) {
    const Codec codec = codec_of(text, shape.cols);
    StoredRows stored(codec, shape.rows);
    ASSERT_TRUE(stored.encode(codec, x));
    const auto back = stored.decode(codec);
    std::vector<std::int8_t> codes(shape.cols);
    std::vector<float> scale(codec.groups()), offset(codec.groups());
    const std::size_t wide = codec.spec().unit_cols ? codec.spec().unit_cols : shape.cols;
    for (std::size_t r = 0; r < shape.rows; ++r) {
      codec.decode_codes(stored.payload, r, {codes.data(), {1, shape.cols}});
      codec.read_scales(stored.scales, codec.tile_of(r), scale, offset);
      for (std::size_t c = 0; c < shape.cols; ++c) {
        EXPECT_EQ(std::fma(scale[c / wide], codes[c], offset[c / wide]), back[r * shape.cols + c]);
      }
    }
  }
}

// Each run is stored as the integer kind of its bits would store those columns alone.
TEST(Codec, MixedRunsAreIntegerKindsSideBySide) {
  at_every_level([](CpuLevel) {
    Random random(11);
    const Shape shape{9, 1 + 40 + 3 + 64};
    const std::vector<float> x = random_rows(random, shape);
    const Codec codec = codec_of("mixed:8x1,4x40,0x3,2x64", shape.cols);
    StoredRows stored(codec, shape.rows);
    ASSERT_TRUE(stored.encode(codec, x));
    EXPECT_EQ(stored.payload.size(), shape.rows * (4 + 1 + 4 + 20 + 4 + 16));
    const std::vector<float> all = stored.decode(codec);
    std::size_t first = 0;
    for (const CodecRun& run : codec.spec().runs) {
      std::vector<float> columns, right(shape.rows * run.cols);
      for (std::size_t r = 0; r < shape.rows; ++r) {
        const float* from = x.data() + r * shape.cols + first;
        columns.insert(columns.end(), from, from + run.cols);
      }
      if (run.bits > 0) {
        const Codec alone = codec_of("int" + std::to_string(run.bits) + ":row,asym", run.cols);
        StoredRows apart(alone, shape.rows);
        ASSERT_TRUE(apart.encode(alone, columns));
        right = apart.decode(alone);
      }
      for (std::size_t i = 0; i < right.size(); ++i) {
        EXPECT_EQ(all[i / run.cols * shape.cols + first + i % run.cols], right[i]) << run.bits;
      }
      first += run.cols;
    }
    for (std::size_t r = 0; r < shape.rows; ++r) {
      double square = 0.0;
      for (std::size_t c = 0; c < shape.cols; ++c) {
        const double off = double{x[r * shape.cols + c]} - double{all[r * shape.cols + c]};
        square += off * off;
      }
      EXPECT_GE(double{stored.l2[r]}, std::sqrt(square));
      EXPECT_LE(double{stored.l2[r]}, std::sqrt(square) * 1.0001);
    }
  });
  EXPECT_FALSE(Codec::create(parse_codec_spec("mixed:4x40").value(), 41));
  const Codec codec = codec_of("mixed:4x2", 2);
  StoredRows stored(codec, 1);
  EXPECT_FALSE(stored.encode(codec, {1.0f, 70000.0f}));
}

}  // namespace
}  // namespace kvspan
