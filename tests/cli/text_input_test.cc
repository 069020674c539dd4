// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/text_input.h"

#include <gtest/gtest.h>

#include "cli/chat/prompt.h"

namespace kvspan::cli {
namespace {

TEST(TextInput, InvalidTextIsRefusedWithItsPlace) {
  EXPECT_TRUE(check_text("a\xc3\xa4", "the text"));
  const Status broken = check_text("ab\xff", "'x.txt'");
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().message, "'x.txt' is not valid UTF-8 at byte 2 (0xff)");
  const Status nul = check_text(std::string_view("a\0b", 3), "the text");
  ASSERT_FALSE(nul);
  EXPECT_EQ(nul.error().message, "the text has a NUL at byte 1; text is expected");
}

TEST(TextInput, MendedTextIsValidAndKeepsWhatWasValid) {
  EXPECT_EQ(mended_utf8("a\xc3\xa4z"), "a\xc3\xa4z");
  EXPECT_EQ(mended_utf8("a\xf0\x9f"), "a\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(mended_utf8("\xff"
                        "b"),
            "\xef\xbf\xbd"
            "b");
}

TEST(Prompt, CommonPrefixEndsAtTheFirstDifference) {
  const std::vector<Token> a{1, 2, 3}, b{1, 2, 4, 5}, none;
  EXPECT_EQ(common_prefix(a, b), 2u);
  EXPECT_EQ(common_prefix(a, a), 3u);
  EXPECT_EQ(common_prefix(a, none), 0u);
  EXPECT_EQ(common_prefix(none, b), 0u);
}

}  // namespace
}  // namespace kvspan::cli
