// SPDX-License-Identifier: Apache-2.0
#include "report/svg.h"

#include <gtest/gtest.h>

namespace kvspan::testing {
namespace {

TEST(Escaped, LeavesNothingThatMarkupReads) {
  EXPECT_EQ(escaped("a<b> & \"c\" 'd'\x01\n"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;  ");
  EXPECT_EQ(escaped("r\u00e9sum\u00e9"), "r\u00e9sum\u00e9");
}

TEST(Exact, ReadsBackAsTheSameNumber) {
  for (const double value : {0.1, 1.0 / 3.0, 1e-300, 6.02e23, -0.0065, 94371840.0}) {
    EXPECT_EQ(std::stod(exact(value)), value);
  }
}

TEST(Shown, RoundsForPeople) {
  EXPECT_EQ(shown(0.0), "0");
  EXPECT_EQ(shown(0.00647079717300234), "0.006471");
  EXPECT_EQ(shown(17.944947425758414), "17.94");
  EXPECT_EQ(shown(94371840.0), "94371840");
  EXPECT_EQ(shown(123456.78), "123457");
}

TEST(Coordinate, IsShort) {
  EXPECT_EQ(coordinate(1.0), "1");
  EXPECT_EQ(coordinate(2.504), "2.5");
  EXPECT_EQ(coordinate(-0.001), "0");
}

TEST(Fitted, CutsByCharactersNotBytes) {
  EXPECT_EQ(fitted("short", 10, 100), "short");
  const std::string cut = fitted("\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9", 10, 30);
  EXPECT_LE(text_width(cut, 10), 30);
  EXPECT_TRUE(cut.ends_with("\u2026"));
  EXPECT_EQ(cut.find("\u00e9"), 0u);
  EXPECT_EQ(fitted("anything", 10, 2), "");
}

TEST(Wrapped, KeepsEveryWordWithinTheWidth) {
  const std::string text = "Divergence from the full cache against bytes, with every method";
  std::string joined;
  for (const std::string& line : wrapped(text, 12, 150)) {
    EXPECT_LE(text_width(line, 12), 150);
    joined += (joined.empty() ? "" : " ") + line;
  }
  EXPECT_EQ(joined, text);
  for (const std::string& line : wrapped("averyveryverylongwordthatdoesnotfit ok", 12, 60)) {
    EXPECT_LE(text_width(line, 12), 60);
  }
}

}  // namespace
}  // namespace kvspan::testing
