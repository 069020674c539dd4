// SPDX-License-Identifier: Apache-2.0
#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"

namespace kvspan {
namespace {

// Every finite half is exactly a float, so converting there and back is the identity.
TEST(Half, EveryPatternSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const Half h{static_cast<std::uint16_t>(bits)};
    const float f = to_float(h);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(to_float(to_half(f))));
    } else {
      EXPECT_EQ(to_half(f).bits, h.bits) << "pattern " << bits;
    }
  }
}

TEST(Half, RoundsToTheNearestAndTiesToEven) {
  Random random(7);
  for (std::uint32_t bits = 0; bits < 0x7bffu; ++bits) {
    const float low = to_float(Half{static_cast<std::uint16_t>(bits)});
    const float high = to_float(Half{static_cast<std::uint16_t>(bits + 1)});
    const float middle = 0.5f * (low + high);
    EXPECT_EQ(to_half(middle).bits, (bits & 1) ? bits + 1 : bits) << middle;
    EXPECT_EQ(to_half(std::nextafter(middle, low)).bits, bits);
    EXPECT_EQ(to_half(std::nextafter(middle, high)).bits, bits + 1);
    EXPECT_EQ(to_half(-std::nextafter(middle, low)).bits, bits | 0x8000u);
  }
}

TEST(Half, OverflowBecomesInfinityAndNanStaysNan) {
  EXPECT_EQ(to_half(65504.0f).bits, 0x7bff);
  EXPECT_EQ(to_half(65519.9f).bits, 0x7bff);
  EXPECT_EQ(to_half(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_half(-1e30f).bits, 0xfc00);
  EXPECT_TRUE(std::isnan(to_float(to_half(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(BFloat16, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(to_bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(1.0f + 0x1p-8f).bits, 0x3f80);            // tie, even below
  EXPECT_EQ(to_bfloat16(1.0f + 0x1p-7f + 0x1p-8f).bits, 0x3f82);  // tie, even above
  EXPECT_EQ(to_bfloat16(1.0f + 0x1p-8f + 0x1p-20f).bits, 0x3f81);
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace kvspan
