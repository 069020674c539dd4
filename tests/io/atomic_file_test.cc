// SPDX-License-Identifier: Apache-2.0
#include "io/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "tests/io/temporary_folder.h"

namespace kvspan {
namespace {

TEST(AtomicFile, WritesWhatWasGivenAndReadsItBack) {
  TemporaryFolder folder;
  for (const std::size_t size : {0u, 1u, 4095u, 4096u, 4097u, 100000u}) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
    ASSERT_TRUE(write_file(folder / "a", bytes));
    const auto read = read_file(folder / "a");
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, bytes);
  }
  EXPECT_EQ(folder.entries(), 1);
}

TEST(AtomicFile, ModeIsWhatTheUmaskAllows) {
  TemporaryFolder folder;
  const mode_t old = umask(027);
  const Status written = write_file(folder / "a", "x");
  umask(old);
  ASSERT_TRUE(written);
  struct stat info {};
  ASSERT_EQ(stat((folder / "a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST(AtomicFile, WithoutCommitTheOldFileStaysAndNothingElse) {
  TemporaryFolder folder;
  ASSERT_TRUE(write_file(folder / "a", "old"));
  {
    auto file = AtomicFile::create(folder / "a");
    ASSERT_TRUE(file);
    const std::vector<std::byte> bytes(10);
    ASSERT_TRUE(file->write(bytes));
    EXPECT_EQ(text_of(folder / "a"), "old");
  }
  EXPECT_EQ(text_of(folder / "a"), "old");
  EXPECT_EQ(folder.entries(), 1);
}

// A limit on file length stands for a full disk: write() fails in the middle.
TEST(AtomicFile, AFailedWriteLeavesTheOldFileAndNothingElse) {
  TemporaryFolder folder;
  ASSERT_TRUE(write_file(folder / "a", "old"));
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{10000, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status written = write_file(folder / "a", std::string(20000, 'x'));
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::kIo);
  EXPECT_NE(written.error().message.find(folder / "a"), std::string::npos);
  EXPECT_EQ(text_of(folder / "a"), "old");
  EXPECT_EQ(folder.entries(), 1);
}

// A rename would put a plain file where the device was, for whoever may write to its folder.
TEST(AtomicFile, DevicesAndPipesAreWrittenAndStayWhatTheyAre) {
  ASSERT_TRUE(write_file("/dev/null", std::string_view("gone")));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  const Status full = write_file("/dev/full", std::string_view("no room"));
  ASSERT_FALSE(full);
  EXPECT_NE(full.error().message.find("'/dev/full': No space left on device"), std::string::npos)
      << full.error().message;
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));

  TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  ASSERT_TRUE(write_file(pipe, std::string_view("through")));
  char text[16];
  EXPECT_EQ(read(reader, text, sizeof text), 7);
  close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST(AtomicFile, ErrorsNameThePath) {
  TemporaryFolder folder;
  const auto written = write_file(folder / "no/such/a", "x");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::kNotFound);
  EXPECT_NE(written.error().message.find("no/such/a"), std::string::npos);
  EXPECT_EQ(read_file(folder / "none").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(read_file(folder.path()).error().code, ErrorCode::kIo);
}

TEST(ReadFile, KeepsToItsLimitAndReadsFilesWithoutLength) {
  TemporaryFolder folder;
  ASSERT_TRUE(write_file(folder / "a", std::string(100, 'x')));
  EXPECT_TRUE(read_file(folder / "a", 100));
  EXPECT_EQ(read_file(folder / "a", 99).error().code, ErrorCode::kOutOfBudget);
  const auto status = read_file("/proc/self/status");
  ASSERT_TRUE(status);
  EXPECT_GT(status->size(), 100u);
  EXPECT_EQ(read_file("/proc/self/status", 20).error().code, ErrorCode::kOutOfBudget);
}

}  // namespace
}  // namespace kvspan
