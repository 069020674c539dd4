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

struct stat status_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info;
}

// Links of links, absolute and relative: all stay, and the file at their end is replaced, in its own folder.
TEST(AtomicFile, LinksStayAndTheirTargetIsReplaced) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "data");
  ASSERT_TRUE(write_file(folder / "data/file", "old"));
  std::filesystem::create_symlink("data/file", folder / "near");
  std::filesystem::create_symlink(folder / "near", folder / "far");
  const int reader = open((folder / "far").c_str(), O_RDONLY);
  for (const char* const name : {"near", "far"}) {
    const std::string text = std::string("through ") + name;
    ASSERT_TRUE(write_file(folder / name, text));
    EXPECT_EQ(text_of(folder / "data/file"), text);
    EXPECT_EQ(std::filesystem::read_symlink(folder / "near"), "data/file");
    EXPECT_EQ(std::filesystem::read_symlink(folder / "far"), folder / "near");
  }
  char text[8] = {};
  EXPECT_EQ(read(reader, text, sizeof text), 3) << "whoever reads the old file goes on to do so";
  close(reader);
  EXPECT_EQ(folder.entries(), 3);

  {
    auto file = AtomicFile::create(folder / "far");
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write(std::as_bytes(std::span("half", 4))));
  }
  EXPECT_EQ(text_of(folder / "data/file"), "through far");
}

TEST(AtomicFile, AReplacedFileKeepsItsModeAndOwner) {
  TemporaryFolder folder;
  ASSERT_TRUE(write_file(folder / "file", "old"));
  std::filesystem::create_symlink("file", folder / "link");
  for (const mode_t mode : {0600u, 0644u, 0660u, 0755u}) {
    ASSERT_EQ(chmod((folder / "file").c_str(), mode), 0);
    ASSERT_TRUE(write_file(folder / "file", "new"));
    EXPECT_EQ(status_of(folder / "file").st_mode & 07777, mode);
    ASSERT_TRUE(write_file(folder / "link", "newer"));
    EXPECT_EQ(status_of(folder / "file").st_mode & 07777, mode);
  }
  if (geteuid() != 0) return;  // only root gives files to others
  ASSERT_EQ(chown((folder / "file").c_str(), 12, 34), 0);
  ASSERT_TRUE(write_file(folder / "link", "newest"));
  EXPECT_EQ(status_of(folder / "file").st_uid, 12u);
  EXPECT_EQ(status_of(folder / "file").st_gid, 34u);
  EXPECT_EQ(status_of(folder / "file").st_mode & 07777, 0755u);

  // Who may not give the group away does not let a group of its own read it either.
  ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);
  ASSERT_EQ(chmod((folder / "file").c_str(), 0640), 0);
  ASSERT_EQ(setegid(65534), 0);
  ASSERT_EQ(seteuid(65534), 0);
  const Status written = write_file(folder / "file", "of another");
  ASSERT_EQ(seteuid(0), 0);
  ASSERT_EQ(setegid(0), 0);
  ASSERT_TRUE(written);
  EXPECT_EQ(status_of(folder / "file").st_uid, 65534u);
  EXPECT_EQ(status_of(folder / "file").st_mode & 07777, 0600u);
}

TEST(AtomicFile, LinksThatLeadNowhereAndFoldersAreErrors) {
  TemporaryFolder folder;
  std::filesystem::create_symlink("none", folder / "dangling");
  std::filesystem::create_symlink("loop", folder / "loop");
  std::filesystem::create_directory(folder / "data");
  std::filesystem::create_symlink("data", folder / "folder");
  const auto refused = [&](const std::string& name, std::string_view says) {
    const Status written = write_file(folder / name, "x");
    ASSERT_FALSE(written) << name;
    EXPECT_NE(written.error().message.find(says), std::string::npos) << written.error().message;
  };
  refused("dangling", "cannot follow the link '" + (folder / "dangling") + "': No such file");
  refused("loop", "cannot follow the link '" + (folder / "loop") + "': Too many levels");
  refused("folder", "cannot write '" + (folder / "data") + "': it is a folder");
  refused("data", "cannot write '" + (folder / "data") + "': it is a folder");
  EXPECT_EQ(folder.entries(), 4);

  if (geteuid() != 0) return;  // as root every folder takes new files
  ASSERT_TRUE(write_file(folder / "data/file", "old"));
  std::filesystem::create_symlink("data/file", folder / "link");
  ASSERT_EQ(chmod(folder.path().c_str(), 0777), 0);
  ASSERT_EQ(seteuid(65534), 0);
  const Status written = write_file(folder / "link", "x");
  ASSERT_EQ(seteuid(0), 0);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().message,
            "cannot create a file beside '" + (folder / "data/file") + "': Permission denied");
  EXPECT_EQ(text_of(folder / "data/file"), "old");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
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
