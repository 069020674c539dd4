// SPDX-License-Identifier: Apache-2.0
#include "io/process.h"

#include <gtest/gtest.h>

#include <csignal>

namespace kvspan {
namespace {

TEST(RunProcess, ReturnsOutputAndExitCode) {
  const auto end = run_process({"sh", "-c", "printf '%s|' \"$@\"; exit 3", "sh", "a b", "c'\"d"});
  ASSERT_TRUE(end) << end.error().message;
  EXPECT_EQ(end->exit_code, 3);
  EXPECT_EQ(end->output, "a b|c'\"d|");
}

TEST(RunProcess, TakesMoreOutputThanAPipeHolds) {
  const auto end = run_process({"sh", "-c", "head -c 300000 /dev/zero"});
  ASSERT_TRUE(end);
  EXPECT_EQ(end->output.size(), 300000u);
}

TEST(RunProcess, TellsOfSignalsAndMissingPrograms) {
  EXPECT_EQ(run_process({"sh", "-c", "kill -9 $$"})->exit_code, 128 + 9);
  const auto missing = run_process({"kvspan-no-such-program"});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find("kvspan-no-such-program"), std::string::npos);
}

// Ctrl-C reaches the whole foreground group: the child ends by it, the caller lives on with its own
// handling restored.
TEST(RunProcess, LeavesCtrlCToTheChild) {
  const auto before = std::signal(SIGINT, SIG_DFL);
  const auto end = run_process({"sh", "-c", "kill -INT $PPID; kill -INT $$; sleep 10"});
  ASSERT_TRUE(end);
  EXPECT_EQ(end->exit_code, 128 + SIGINT);
  EXPECT_EQ(std::signal(SIGINT, before), SIG_DFL);
}

}  // namespace
}  // namespace kvspan
