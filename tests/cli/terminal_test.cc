// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdlib>

namespace kvspan::cli {
namespace {

// A terminal of 100 columns for the length of a test.
class Pty {
 public:
  Pty() {
    struct winsize size {
      30, 100, 0, 0
    };
    EXPECT_EQ(openpty(&master_, &slave_, nullptr, nullptr, &size), 0);
  }
  ~Pty() {
    close(master_);
    close(slave_);
  }
  int fd() const { return slave_; }

 private:
  int master_ = -1, slave_ = -1;
};

TEST(Terminal, AFileIsNoTerminalAndHasNoColours) {
  const int fd = open("/dev/null", O_WRONLY);
  const Terminal terminal = describe_terminal(fd);
  close(fd);
  EXPECT_FALSE(terminal.is_terminal);
  EXPECT_FALSE(terminal.colours);
  EXPECT_EQ(terminal.width, 80);
}

TEST(Terminal, ColoursObeyNoColorAndDumbTerminals) {
  const Pty pty;
  setenv("TERM", "xterm", 1);
  unsetenv("NO_COLOR");
  EXPECT_TRUE(describe_terminal(pty.fd()).colours);
  EXPECT_EQ(describe_terminal(pty.fd()).width, 100);
  setenv("NO_COLOR", "", 1);  // no-color.org: only when not empty
  EXPECT_TRUE(describe_terminal(pty.fd()).colours);
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(describe_terminal(pty.fd()).colours);
  unsetenv("NO_COLOR");
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(describe_terminal(pty.fd()).colours);
}

TEST(Terminal, StyleIsLeftOutWithoutColours) {
  EXPECT_EQ(styled("x", Style::kRed, {true, false, 80}), "x");
  EXPECT_EQ(styled("x", Style::kRed, {true, true, 80}), "\033[31mx\033[0m");
}

TEST(Terminal, WidthCountsCharactersNotBytes) {
  EXPECT_EQ(display_width(""), 0u);
  EXPECT_EQ(display_width("abc"), 3u);
  EXPECT_EQ(display_width("\xc3\xa4\xe2\x82\xac"), 2u);  // a umlaut, euro sign
}

TEST(Terminal, FittedTextKeepsWholeCharacters) {
  EXPECT_EQ(fit_width("abcdef", 6), "abcdef");
  EXPECT_EQ(fit_width("abcdefg", 6), "abc...");
  EXPECT_EQ(fit_width("\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4", 4), "\xc3\xa4...");
  EXPECT_EQ(fit_width("abcdef", 2), "ab");
  EXPECT_EQ(fit_width("abcdef", 0), "");
}

}  // namespace
}  // namespace kvspan::cli
