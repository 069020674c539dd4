// SPDX-License-Identifier: Apache-2.0
#include "io/user_folders.h"

#include <gtest/gtest.h>

#include "tests/io/temporary_folder.h"

namespace kvspan {
namespace {

TEST(UserCacheFolder, FollowsTheXdgSpecification) {
  ScopedVariable home("HOME", "/home/someone");
  {
    ScopedVariable cache("XDG_CACHE_HOME", "/var/cache/x y");
    EXPECT_EQ(*user_cache_folder(), "/var/cache/x y/kvspan");
  }
  for (const char* not_absolute : {"", "relative", static_cast<const char*>(nullptr)}) {
    ScopedVariable cache("XDG_CACHE_HOME", not_absolute);
    EXPECT_EQ(*user_cache_folder(), "/home/someone/.cache/kvspan");
    ScopedVariable no_home("HOME", nullptr);
    EXPECT_EQ(user_cache_folder().error().code, ErrorCode::kNotFound);
  }
}

TEST(MakeFolders, MakesAllOfThemOnceOrTwice) {
  TemporaryFolder folder;
  ASSERT_TRUE(make_folders(folder / "a/b/c"));
  ASSERT_TRUE(make_folders(folder / "a/b/c"));
  EXPECT_TRUE(std::filesystem::is_directory(folder / "a/b/c"));
  std::ofstream(folder / "file").put('x');
  const Status blocked = make_folders(folder / "file/below");
  ASSERT_FALSE(blocked);
  EXPECT_EQ(blocked.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace kvspan
