// SPDX-License-Identifier: Apache-2.0
// Every target with its seeds, which must be accepted, and with its corpus: inputs that libFuzzer found
// to reach something, and those that once broke a promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/base/sweep.h"
#include "tests/fuzz/history/random_history.h"
#include "tests/fuzz/target.h"

namespace kvspan::fuzz {
namespace {

class Replay : public ::testing::TestWithParam<const Target*> {};

TEST_P(Replay, SeedsAreAccepted) {
  const Target& target = *GetParam();
  const std::vector<Bytes> seeds = target.seeds();
  EXPECT_FALSE(seeds.empty());
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    EXPECT_LE(seeds[i].size(), target.longest) << "seed " << i;
    try {
      EXPECT_TRUE(target.run(seeds[i])) << "seed " << i;
    } catch (const std::exception& broken) {
      ADD_FAILURE() << "seed " << i << ": " << broken.what();
    }
  }
}

TEST_P(Replay, CorpusBreaksNoPromise) {
  const Target& target = *GetParam();
  const std::filesystem::path folder = std::filesystem::path(KVSPAN_SOURCE_DIR) / "tests/fuzz/corpus" / target.name;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_FALSE(files.empty()) << folder;
  for (const std::filesystem::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    const Bytes input{std::istreambuf_iterator<char>(file), {}};
    try {
      target.run(input);
    } catch (const std::exception& broken) {
      ADD_FAILURE() << path << ": " << broken.what();
    }
  }
}

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// Histories KVSPAN_FIRST_HISTORY, .. (1), KVSPAN_HISTORIES of them (60, few with sanitizers).
TEST(Histories, RandomOnesBreakNoPromise) {
  const std::uint64_t first = number_of("KVSPAN_FIRST_HISTORY", 1), count = number_of("KVSPAN_HISTORIES", testing::sweep(60));
  const auto target = std::find_if(all_targets().begin(), all_targets().end(), [](const Target* one) { return one->name == "history"; });
  ASSERT_NE(target, all_targets().end());
  std::uint64_t accepted = 0;
  for (std::uint64_t number = first; number < first + count; ++number) {
    try {
      accepted += (*target)->run(random_history(number));
    } catch (const std::exception& broken) {
      ADD_FAILURE() << "history " << number << ": " << broken.what();
    }
  }
  RecordProperty("accepted", std::to_string(accepted));
  EXPECT_GE(accepted, count / 4) << "most recipes do not fit the shapes";
}

INSTANTIATE_TEST_SUITE_P(Targets, Replay, ::testing::ValuesIn(all_targets().begin(), all_targets().end()),
                         [](const auto& of) { return std::string(of.param->name); });

}  // namespace
}  // namespace kvspan::fuzz
