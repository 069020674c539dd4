// SPDX-License-Identifier: Apache-2.0
#include "io/random_file.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "io/atomic_file.h"
#include "tests/io/temporary_folder.h"

namespace kvspan::testing {
namespace {

std::string text_at(const RandomFile& file, std::size_t offset, std::size_t bytes) {
  std::string text(bytes, '?');
  const Status status = file.read(offset, std::as_writable_bytes(std::span(text)));
  return status ? text : status.error().message;
}

TEST(RandomFile, ReadsAnyPartOfWhatItOpened) {
  const TemporaryFolder folder;
  const std::string path = folder / "text";
  ASSERT_TRUE(write_file(path, std::string_view("0123456789")));
  const auto file = RandomFile::open(path);
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_TRUE(write_file(path, std::string_view("changed")));
  EXPECT_EQ(file->bytes(), 10u);
  EXPECT_EQ(text_at(*file, 7, 3), "789");
  EXPECT_EQ(text_at(*file, 0, 10), "0123456789");
  EXPECT_EQ(text_at(*file, 10, 0), "");
}

TEST(RandomFile, SaysWhereAFileEndsAndWhatIsNone) {
  const TemporaryFolder folder;
  const std::string path = folder / "text";
  ASSERT_TRUE(write_file(path, std::string_view("0123456789")));
  const auto file = RandomFile::open(path);
  ASSERT_TRUE(file);
  EXPECT_EQ(text_at(*file, 8, 3), "'" + path + "' ends at byte 10");
  const auto missing = RandomFile::open(folder / "missing");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  const auto directory = RandomFile::open(folder / ".");
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace kvspan::testing
