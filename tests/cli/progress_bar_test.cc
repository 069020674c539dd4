// SPDX-License-Identifier: Apache-2.0
#include "cli/output/progress_bar.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace kvspan::cli {
namespace {

// What a bar writes, under a clock the test sets.
class Recorder {
 public:
  Recorder() : file_(open_memstream(&text_, &size_)) {}
  ~Recorder() {
    std::fclose(file_);
    std::free(text_);
  }
  std::FILE* file() { return file_; }
  ProgressBar::Clock clock() {
    return [this] { return now; };
  }
  std::string text() {
    std::fflush(file_);
    return std::string(text_, size_);
  }
  double now = 100.0;

 private:
  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_;
};

constexpr Terminal kPipe{false, false, 80};
constexpr Terminal kScreen{true, false, 80};

TEST(ProgressLine, ShowsShareNumbersAndTimeLeft) {
  EXPECT_EQ(progress_line("reading", "tokens", 512, 2048, 3.0, 100),
            "reading [##########..............................] 512 of 2,048 tokens, 9 s left");
  EXPECT_EQ(progress_line("reading", "tokens", 0, 2048, 0.0, 100),
            "reading [........................................] 0 of 2,048 tokens");
}

TEST(ProgressLine, FitsEveryWidth) {
  for (int width = 0; width <= 120; ++width) {
    EXPECT_LE(display_width(progress_line("reading", "tokens", 4096, 8192, 61.0, width)),
              static_cast<std::size_t>(width));
  }
  EXPECT_EQ(progress_line("reading", "tokens", 4096, 8192, 61.0, 50),
            "reading: 4,096 of 8,192 tokens, 1 min 01 s left");
}

TEST(ProgressLine, StandsMoreThanTheTotal) {
  EXPECT_EQ(progress_line("x", "y", 7, 5, 1.0, 34), "x [###########] 5 of 5 y, 0 s left");
}

TEST(ProgressBar, ShortWorkStaysSilent) {
  Recorder out;
  {
    ProgressBar bar("reading", "tokens", 200, out.file(), kScreen, out.clock());
    out.now += 0.4;
    bar.update(100);
    out.now += 0.4;
    bar.update(200);
  }
  EXPECT_EQ(out.text(), "");
}

TEST(ProgressBar, OnATerminalAppearsWhenTheWholeWillTakeTwoSecondsAndLeavesNoTrace) {
  Recorder out;
  {
    ProgressBar bar("reading", "tokens", 200, out.file(), kScreen, out.clock());
    EXPECT_EQ(out.text(), "");
    out.now += 1.0;
    bar.update(50);
    EXPECT_NE(out.text().find("50 of 200 tokens, 3 s left"), std::string::npos);
  }
  EXPECT_TRUE(out.text().ends_with("\r\033[K"));
  EXPECT_EQ(out.text().find('\n'), std::string::npos);
}

TEST(ProgressBar, LongWorkIsAnnouncedAtOnceOnATerminal) {
  Recorder out;
  const ProgressBar bar("reading", "tokens", 8000, out.file(), kScreen, out.clock());
  EXPECT_NE(out.text().find("0 of 8,000 tokens"), std::string::npos);
}

TEST(ProgressBar, ElsewherePrintsPlainLinesEveryFiveSeconds) {
  Recorder out;
  ProgressBar bar("reading", "tokens", 1000, out.file(), kPipe, out.clock());
  for (std::size_t done = 100; done <= 1000; done += 100) {
    out.now += 1.5;
    bar.update(done);
  }
  EXPECT_EQ(out.text(),
            "reading: 200 of 1,000 tokens, 12 s left\n"
            "reading: 600 of 1,000 tokens, 6 s left\n");
}

}  // namespace
}  // namespace kvspan::cli
