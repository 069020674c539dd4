// SPDX-License-Identifier: Apache-2.0
#include "io/machine.h"

#include <gtest/gtest.h>

namespace kvspan::testing {
namespace {

TEST(CpuName, IsTheModelNameOfX86) {
  EXPECT_EQ(cpu_name("processor\t: 0\nmodel\t\t: 85\nmodel name\t: Intel(R) Xeon(R) Gold 6130\n"
                     "model name\t: another\n"),
            "Intel(R) Xeon(R) Gold 6130");
}

TEST(CpuName, IsLookedUpByPartOnArm) {
  EXPECT_EQ(cpu_name("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"), "Arm Neoverse-N1");
  EXPECT_EQ(cpu_name("CPU implementer\t: 0x41\nCPU part\t: 0xfff"), "Arm part 0xfff");
}

TEST(CpuName, IsUnknownElsewhere) {
  EXPECT_EQ(cpu_name(""), "unknown");
  EXPECT_EQ(cpu_name("CPU implementer\t: 0x61\nCPU part\t: 0xd0c\n"), "unknown");
  EXPECT_EQ(cpu_name("model name"), "unknown");
}

TEST(DescribeMachine, NamesTheSystem) {
  const Machine machine = describe_machine();
  EXPECT_FALSE(machine.cpu.empty());
  EXPECT_TRUE(machine.system.starts_with("Linux ")) << machine.system;
}

}  // namespace
}  // namespace kvspan::testing
