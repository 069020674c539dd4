// SPDX-License-Identifier: Apache-2.0
// Every level against the reference, bit for bit, at lengths around the vector widths, at pointers
// off the vector alignment, in memory of exactly the size needed.
#include "codec/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"
#include "every_level.h"

namespace kvspan {
namespace {

constexpr std::size_t kLengths[] = {0,  1,  2,  3,  4,  5,  7,  8,  9,  15, 16,  17,  31,  32,
                                    33, 39, 47, 48, 49, 63, 64, 65, 80, 96, 127, 128, 200, 256};

struct Width {
  int bits;
  PackKernels CodecKernels::*kernels;
};
constexpr Width kWidths[] = {{8, &CodecKernels::int8},
                             {4, &CodecKernels::int4},
                             {3, &CodecKernels::int3},
                             {2, &CodecKernels::int2}};

std::vector<std::int8_t> random_codes(Random& random, std::size_t n, int bits) {
  std::vector<std::int8_t> codes(n);
  for (auto& c : codes) {
    c = static_cast<std::int8_t>(static_cast<int>(random.below(1u << bits)) - (1 << (bits - 1)));
  }
  return codes;
}

std::vector<float> random_floats(Random& random, std::size_t n, double scale = 1.0) {
  std::vector<float> x(n);
  for (auto& v : x) v = static_cast<float>(scale * random.normal());
  return x;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// One byte in front, so that the packed bytes start at an odd address.
struct OddBytes {
  explicit OddBytes(std::size_t n) : bytes(n + 1, 0xee) {}
  std::uint8_t* data() { return bytes.data() + 1; }
  std::vector<std::uint8_t> bytes;
};

TEST(CodecKernels, PackingIsUndoneAndEqualsTheReferenceForEveryCode) {
  Random random(11);
  at_every_level([&](CpuLevel level) {
    for (const Width& width : kWidths) {
      const PackKernels& ref = detail::kCodecKernelsRef.*width.kernels;
      const PackKernels& own = codec_kernels(level).*width.kernels;
      for (const std::size_t n : kLengths) {
        for (int trial = 0; trial < 8; ++trial) {
          const auto codes = random_codes(random, n, width.bits);
          OddBytes expected(packed_bytes(width.bits, n)), packed(packed_bytes(width.bits, n));
          ref.pack(codes.data(), n, expected.data());
          own.pack(codes.data(), n, packed.data());
          ASSERT_TRUE(same_bits(packed.bytes, expected.bytes)) << width.bits << " bits, n " << n;
          std::vector<std::int8_t> back(n);
          own.unpack(packed.data(), n, back.data());
          ASSERT_TRUE(same_bits(back, codes)) << width.bits << " bits, n " << n;
        }
      }
    }
  });
}

// The layout as packed_rows.h describes it, read by a function written from that text alone.
int code_at(const std::uint8_t* row, int bits, std::size_t n, std::size_t i) {
  if (bits == 8) return static_cast<std::int8_t>(row[i]);
  const std::size_t chunk = i / 32, m = std::min<std::size_t>(32, n - 32 * chunk), j = i % 32;
  const std::uint8_t* p = row + chunk * 4 * static_cast<std::size_t>(bits);
  const auto ceil = [](std::size_t a, std::size_t b) { return (a + b - 1) / b; };
  if (bits == 4) {
    const int v = p[j % ceil(m, 2)] >> 4 * (j / ceil(m, 2)) & 15;
    return v < 8 ? v : v - 16;
  }
  const int low = p[j % ceil(m, 4)] >> 2 * (j / ceil(m, 4)) & 3;
  if (bits == 2) return low < 2 ? low : low - 4;
  return low - 4 * (p[ceil(m, 4) + j % ceil(m, 8)] >> j / ceil(m, 8) & 1);
}

TEST(CodecKernels, PackedBytesFollowTheDocumentedLayout) {
  Random random(12);
  for (const Width& width : kWidths) {
    for (const std::size_t n : kLengths) {
      const auto codes = random_codes(random, n, width.bits);
      std::vector<std::uint8_t> packed(packed_bytes(width.bits, n));
      (detail::kCodecKernelsRef.*width.kernels).pack(codes.data(), n, packed.data());
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(code_at(packed.data(), width.bits, n, i), codes[i])
            << width.bits << " bits, n " << n << ", at " << i;
      }
    }
  }
}

TEST(CodecKernels, DecodingEqualsTheReference) {
  Random random(13);
  at_every_level([&](CpuLevel level) {
    for (const Width& width : kWidths) {
      const PackKernels& ref = detail::kCodecKernelsRef.*width.kernels;
      const PackKernels& own = codec_kernels(level).*width.kernels;
      for (const std::size_t n : kLengths) {
        const auto codes = random_codes(random, n, width.bits);
        OddBytes packed(packed_bytes(width.bits, n));
        ref.pack(codes.data(), n, packed.data());
        const auto scale = random_floats(random, n), offset = random_floats(random, n, 100.0);
        const auto chunk_scale = random_floats(random, (n + 31) / 32);
        const auto chunk_offset = random_floats(random, (n + 31) / 32);
        std::vector<float> expected(n), out(n);
        ref.decode_columns(packed.data(), n, scale.data(), offset.data(), expected.data());
        own.decode_columns(packed.data(), n, scale.data(), offset.data(), out.data());
        ASSERT_TRUE(same_bits(out, expected)) << width.bits << " bits, n " << n;
        ref.decode_chunks(packed.data(), n, chunk_scale.data(), chunk_offset.data(),
                          expected.data());
        own.decode_chunks(packed.data(), n, chunk_scale.data(), chunk_offset.data(), out.data());
        ASSERT_TRUE(same_bits(out, expected)) << width.bits << " bits, n " << n;
      }
    }
  });
}

TEST(CodecKernels, QuantizingEqualsTheReferenceAtTiesAndBeyondTheRange) {
  Random random(14);
  at_every_level([&](CpuLevel level) {
    const CodecKernels& ref = detail::kCodecKernelsRef;
    const CodecKernels& own = codec_kernels(level);
    for (const std::size_t n : kLengths) {
      for (const double spread : {3.0, 300.0, 1e30}) {
        auto x = random_floats(random, n, spread);
        for (std::size_t i = 0; i < n; i += 3) x[i] = std::floor(x[i]) + 0.5f;  // ties
        auto inverse = random_floats(random, n), offset = random_floats(random, n);
        for (std::size_t i = 0; i < n; i += 2) inverse[i] = 1.0f, offset[i] = 0.0f;
        std::vector<float> lowest(n), highest(n);
        for (std::size_t i = 0; i < n; ++i) {
          const int half = (1 << random.below(9)) / 2;
          lowest[i] = static_cast<float>(-half);
          highest[i] = static_cast<float>(half > 0 ? half - 1 : 0);
        }
        std::vector<std::int8_t> expected(n), codes(n);
        ref.quantize_columns(x.data(), n, inverse.data(), offset.data(), -7, 7, expected.data());
        own.quantize_columns(x.data(), n, inverse.data(), offset.data(), -7, 7, codes.data());
        ASSERT_TRUE(same_bits(codes, expected)) << "columns, n " << n;
        ref.quantize_chunks(x.data(), n, inverse.data(), offset.data(), -128, 127, expected.data());
        own.quantize_chunks(x.data(), n, inverse.data(), offset.data(), -128, 127, codes.data());
        ASSERT_TRUE(same_bits(codes, expected)) << "chunks, n " << n;
        ref.quantize_midrise(x.data(), n, inverse.data(), lowest.data(), highest.data(),
                             expected.data());
        own.quantize_midrise(x.data(), n, inverse.data(), lowest.data(), highest.data(),
                             codes.data());
        ASSERT_TRUE(same_bits(codes, expected)) << "midrise, n " << n;
      }
    }
  });
}

TEST(CodecKernels, RangesEqualTheReference) {
  Random random(15);
  at_every_level([&](CpuLevel level) {
    const CodecKernels& ref = detail::kCodecKernelsRef;
    const CodecKernels& own = codec_kernels(level);
    for (const std::size_t n : kLengths) {
      const auto x = random_floats(random, n, 5.0);
      EXPECT_EQ(own.max_magnitude(x.data(), n), ref.max_magnitude(x.data(), n));
      for (const float start : {std::numeric_limits<float>::infinity(), 1.0f}) {
        float low = start, high = -start, low_ref = start, high_ref = -start;
        own.widen_range(x.data(), n, &low, &high);
        ref.widen_range(x.data(), n, &low_ref, &high_ref);
        EXPECT_EQ(low, low_ref);
        EXPECT_EQ(high, high_ref);
        std::vector<float> lows(n, start), highs(n, -start), lows_ref(lows), highs_ref(highs);
        own.widen_columns(x.data(), n, lows.data(), highs.data());
        ref.widen_columns(x.data(), n, lows_ref.data(), highs_ref.data());
        EXPECT_EQ(lows, lows_ref);
        EXPECT_EQ(highs, highs_ref);
      }
    }
  });
}

TEST(CodecKernels, AnythingNotFiniteShowsInTheMagnitudeWhereverItStands) {
  at_every_level([&](CpuLevel level) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      for (std::size_t at = 0; at < 53; ++at) {
        std::vector<float> x(53, -3.0e38f);
        EXPECT_LT(codec_kernels(level).max_magnitude(x.data(), 53), 0x7f800000u);
        x[at] = bad;
        EXPECT_GE(codec_kernels(level).max_magnitude(x.data(), 53), 0x7f800000u);
      }
    }
  });
}

TEST(CodecKernels, ResidualsKeepTheirPromise) {
  Random random(16);
  at_every_level([&](CpuLevel level) {
    for (const std::size_t n : kLengths) {
      for (const double scale : {1e-24, 1e-10, 1.0, 1e15}) {
        const auto x = random_floats(random, n, scale), y = random_floats(random, n, scale);
        Residual r;
        codec_kernels(level).residual(x.data(), y.data(), n, &r);
        double squares = 0, largest = 0;
        for (std::size_t i = 0; i < n; ++i) {
          const double d = std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
          squares += d * d;
          largest = std::max(largest, d);
        }
        const double lost = static_cast<double>(n) * 0x1p-148;
        EXPECT_GE(r.squares, squares * (1 - 0x1p-19) - lost);
        EXPECT_LE(r.squares, squares * (1 + 0x1p-19) + lost);
        EXPECT_EQ(r.largest, static_cast<float>(largest));
      }
    }
  });
}

TEST(CodecKernels, HalvesConvertLikeTheReferenceForEveryPattern) {
  at_every_level([&](CpuLevel level) {
    const CodecKernels& own = codec_kernels(level);
    std::vector<Half> halves(0x10000);
    std::vector<BFloat16> bfloats(0x10000);
    for (std::uint32_t i = 0; i < 0x10000; ++i) {
      halves[i].bits = bfloats[i].bits = static_cast<std::uint16_t>(i);
    }
    std::vector<float> wide(0x10000), wide_b(0x10000);
    own.f16_to_f32(halves.data(), wide.size(), wide.data());
    own.bf16_to_f32(bfloats.data(), wide.size(), wide_b.data());
    for (std::uint32_t i = 0; i < 0x10000; ++i) {
      const float expected = to_float(halves[i]);
      ASSERT_TRUE(std::isnan(expected) ? std::isnan(wide[i])
                                       : std::bit_cast<std::uint32_t>(wide[i]) ==
                                             std::bit_cast<std::uint32_t>(expected));
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide_b[i]), i << 16);
    }
  });
}

TEST(CodecKernels, NarrowingRoundsLikeTheReferenceAroundEveryTie) {
  // All floats whose upper 19 bits take every value and whose lower 13 lie around a tie.
  std::vector<float> x;
  for (std::uint32_t high = 0; high < 1u << 19; high += 3) {
    for (const std::uint32_t low : {0x0u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu}) {
      const float v = std::bit_cast<float>(high << 13 | low);
      if (!std::isnan(v)) x.push_back(v);
    }
  }
  at_every_level([&](CpuLevel level) {
    std::vector<Half> halves(x.size());
    std::vector<BFloat16> bfloats(x.size());
    codec_kernels(level).f32_to_f16(x.data(), x.size(), halves.data());
    codec_kernels(level).f32_to_bf16(x.data(), x.size(), bfloats.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(halves[i].bits, to_half(x[i]).bits) << x[i];
      ASSERT_EQ(bfloats[i].bits, to_bfloat16(x[i]).bits) << x[i];
    }
    const std::vector<float> nans(17, std::numeric_limits<float>::quiet_NaN());
    codec_kernels(level).f32_to_f16(nans.data(), 17, halves.data());
    codec_kernels(level).f32_to_bf16(nans.data(), 17, bfloats.data());
    for (int i = 0; i < 17; ++i) {
      EXPECT_TRUE(std::isnan(to_float(halves[i])));
      EXPECT_TRUE(std::isnan(to_float(bfloats[i])));
    }
  });
}

}  // namespace
}  // namespace kvspan
