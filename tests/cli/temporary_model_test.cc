// SPDX-License-Identifier: Apache-2.0
#include "cli/temporary_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

namespace kvspan::cli {
namespace {

namespace fs = std::filesystem;

// A process that has ended.
pid_t nobody() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  return child;
}

TEST(TemporaryModel, RemovesItselfAndOldCopiesOfProcessesThatAreNoMore) {
  const fs::path folder =
      fs::path(::testing::TempDir()) / fmt::format("kvspan_copies_{}", getpid());
  fs::create_directory(folder);
  const fs::path model = folder / "llama.gguf";
  fs::copy_file(fs::path(KVSPAN_SOURCE_DIR) / "data/fixtures/llama.gguf", model);
  const auto leave = [&](const std::string& name, bool old) {
    const fs::path path = folder / name;
    std::ofstream(path) << "left";
    if (old) fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(2));
    return path;
  };
  const pid_t dead = nobody();
  const fs::path abandoned = leave(fmt::format("llama.gguf.f16.{}", dead), true);
  const fs::path others[] = {leave(fmt::format("llama.gguf.f16.{}", nobody()), false),
                             leave(fmt::format("llama.gguf.f16.{}", getppid()), true),
                             leave(fmt::format("llama.gguf.f16.{}x", dead), true),
                             leave(fmt::format("llama.gguf.f32.{}", dead), true),
                             leave("llama.gguf.f16.", true)};
  std::string path;
  {
    const auto copy = TemporaryModel::float_copy_of(model.string(), FloatWeights::kF16);
    ASSERT_TRUE(copy) << copy.error().message;
    path = copy->path();
    EXPECT_TRUE(fs::exists(path));
    EXPECT_FALSE(fs::exists(abandoned));
  }
  EXPECT_FALSE(fs::exists(path));
  for (const fs::path& other : others) EXPECT_TRUE(fs::exists(other)) << other;
  fs::remove_all(folder);
}

}  // namespace
}  // namespace kvspan::cli
