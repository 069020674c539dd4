// SPDX-License-Identifier: Apache-2.0
#include "cli/output/table.h"

#include <gtest/gtest.h>

namespace kvspan::cli {
namespace {

Table example() {
  Table table({{"name"}, {"bytes", Table::Align::kRight}, {"answer"}});
  table.add_row({"full", "1,024", "The sky\nis blue."});
  table.add_row({"b\xc3\xa4nds", "64", "Yes."});
  return table;
}

TEST(Table, AlignsColumnsByCharactersAndKeepsRowsOnOneLine) {
  EXPECT_EQ(example().text(),
            "name   bytes  answer\n"
            "-----  -----  ----------------\n"
            "full   1,024  The sky is blue.\n"
            "b\xc3\xa4nds     64  Yes.\n");
}

TEST(Table, CutsTheLastColumnToTheWidthButNotBelowItsTitle) {
  EXPECT_EQ(example().text(24),
            "name   bytes  answer\n"
            "-----  -----  ----------\n"
            "full   1,024  The sky...\n"
            "b\xc3\xa4nds     64  Yes.\n");
  EXPECT_EQ(example().text(1),
            "name   bytes  answer\n"
            "-----  -----  ------\n"
            "full   1,024  The...\n"
            "b\xc3\xa4nds     64  Yes.\n");
}

TEST(Table, WithoutRowsIsItsHead) {
  EXPECT_EQ(Table({{"a"}}).text(), "a\n-\n");
}

}  // namespace
}  // namespace kvspan::cli
