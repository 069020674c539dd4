// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_level.h"

#include <gtest/gtest.h>

namespace kvspan {
namespace {

TEST(CpuLevel, ReferenceIsAlwaysThereAndTheHighestIsTheDefault) {
  ASSERT_FALSE(available_cpu_levels().empty());
  EXPECT_EQ(available_cpu_levels().front(), CpuLevel::kReference);
  EXPECT_EQ(cpu_level(), available_cpu_levels().back());
}

TEST(CpuLevel, ForcingALevelTheProcessorLacksNamesWhatItHas) {
  const CpuLevel foreign =
      available_cpu_levels().back() >= CpuLevel::kAvx2 ? CpuLevel::kNeon : CpuLevel::kAvx2;
  const Status status = force_cpu_level(foreign);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("it has: ref"), std::string::npos);
}

TEST(CpuLevel, NamesParseBack) {
  for (const CpuLevel level : available_cpu_levels()) {
    EXPECT_EQ(parse_cpu_level(name_of(level)).value(), level);
  }
  EXPECT_FALSE(parse_cpu_level("sse9"));
}

}  // namespace
}  // namespace kvspan
