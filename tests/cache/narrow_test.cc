// SPDX-License-Identifier: Apache-2.0
#include "cache/rows/narrow.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/cpu_level.h"
#include "base/random.h"

namespace kvspan {
namespace {

TEST(Narrow, EqualsTheScalarConversionBitForBitAtEveryLevel) {
  Random random(1);
  std::vector<float> from;
  for (std::uint32_t h = 0; h < 0x10000; h += 3) {
    const float x = to_float(Half{static_cast<std::uint16_t>(h)});
    if (std::isnan(x)) continue;
    from.push_back(x);
    from.push_back(std::nextafter(x, 1e30f));
    from.push_back(x * 1.00048828125f);  // halfway to the next f16 of a normal number
  }
  for (int i = 0; i < 20000; ++i) {  // any pattern but NaN
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random.bits()));
    if (!std::isnan(x)) from.push_back(x);
  }
  for (const CpuLevel level : available_cpu_levels()) {
    ASSERT_TRUE(force_cpu_level(level));
    for (const std::size_t count : {from.size(), std::size_t{0}, std::size_t{1}, std::size_t{7}}) {
      std::vector<Half> to(count + 2, Half{0x1234});
      narrow_to_half(from.data() + 1, count == from.size() ? count - 1 : count, to.data() + 1);
      for (std::size_t i = 0; i + 1 < count; ++i) {
        ASSERT_EQ(to[i + 1].bits, to_half(from[i + 1]).bits) << from[i + 1];
      }
      EXPECT_EQ(to[0].bits, 0x1234);
      EXPECT_EQ(to[count + 1].bits, 0x1234);
    }
  }
  ASSERT_TRUE(force_cpu_level(available_cpu_levels().back()));
}

}  // namespace
}  // namespace kvspan
