// SPDX-License-Identifier: Apache-2.0
#include "cli/output/format.h"

#include <gtest/gtest.h>

namespace kvspan::cli {
namespace {

TEST(Format, BytesUsePowersOf1024AndChangeUnitBeforeFourDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(23040), "22.5 KiB");
  EXPECT_EQ(format_bytes(1048575), "1.0 MiB");  // 1023.999 KiB would read as 1024.0
  EXPECT_EQ(format_bytes(98362432), "93.8 MiB");
  EXPECT_EQ(format_bytes(std::uint64_t{5} << 40), "5.0 TiB");
  EXPECT_EQ(format_bytes(std::uint64_t{5000} << 40), "5000.0 TiB");
}

TEST(Format, DurationsRoundAndCarry) {
  EXPECT_EQ(format_duration(-3.0), "0 s");
  EXPECT_EQ(format_duration(0.4), "0 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(59.6), "1 min 00 s");
  EXPECT_EQ(format_duration(65.0), "1 min 05 s");
  EXPECT_EQ(format_duration(7380.0), "2 h 03 min");
}

TEST(Format, CountsHaveGroupsOfThree) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(1234567), "1,234,567");
}

TEST(Format, RatesAndRatiosWithoutAMeasurementAreADash) {
  EXPECT_EQ(format_rate(100, 2.0), "50.0");
  EXPECT_EQ(format_rate(0, 2.0), "-");
  EXPECT_EQ(format_rate(10, 0.0), "-");
  EXPECT_EQ(format_ratio(800, 100), "8.00x");
  EXPECT_EQ(format_ratio(800, 0), "-");
}

TEST(Format, QuotedTextStaysOnOneLineAndKeepsEveryByteTold) {
  EXPECT_EQ(in_quotes("a b"), "'a b'");
  EXPECT_EQ(in_quotes("\n\t'\\"), "'\\n\\t\\'\\\\'");
  EXPECT_EQ(in_quotes(std::string_view("\0\x7f", 2)), "'\\x00\\x7f'");
  EXPECT_EQ(in_quotes("\xc3\xa4"), "'\xc3\xa4'");
  EXPECT_EQ(in_quotes("\xc3"), "'\\xc3'");
  EXPECT_EQ(in_quotes("a\xff\xc3\xa4"), "'a\\xff\xc3\xa4'");
}

}  // namespace
}  // namespace kvspan::cli
