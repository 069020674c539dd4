// SPDX-License-Identifier: Apache-2.0
#include "llama/gguf_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include "base/random.h"
#include "llama/engine.h"
#include "llama/tokenizer.h"
#include "tests/llama/reference_logits.h"

namespace kvspan::testing {
namespace gguf_file_test {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::vector<char>& bytes) {
    path_ = ::testing::TempDir() + "/kvspan_gguf_" + std::to_string(getpid()) + ".gguf";
    std::ofstream(path_, std::ios::binary).write(bytes.data(), static_cast<long>(bytes.size()));
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<char> bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Everything a user does with a file before it runs.
Status load(const std::string& path) {
  auto engine = Engine::load(path, {1, 64});
  return engine ? Status() : Status(engine.error());
}

TEST(GgufFile, ReadsTypedMetadata) {
  auto file = GgufFile::open(fixture_path("llama.gguf"));
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ((*file)->require_string("general.architecture").value(), "llama");
  EXPECT_EQ((*file)->find_int("llama.no_such_key").value(), std::nullopt);
  EXPECT_FALSE((*file)->find_string("llama.block_count"));
  EXPECT_FALSE((*file)->find_int("general.architecture"));
  EXPECT_FALSE((*file)->require_string("llama.no_such_key"));
  EXPECT_FALSE((*file)->require_tensor("output_norm.weight", 7));
  EXPECT_FALSE((*file)->require_tensor("no_such_tensor", 7));
}

TEST(GgufFile, EveryTruncationIsAnErrorThatNamesTheFile) {
  const std::vector<char> whole = bytes_of(fixture_path("llama.gguf"));
  for (std::size_t size = 0; size < whole.size(); size += size < 64 ? 1 : 997) {
    const TemporaryFile file({whole.begin(), whole.begin() + static_cast<long>(size)});
    const Status status = load(file.path());
    ASSERT_FALSE(status) << "cut at " << size;
    EXPECT_NE(status.error().message.find(file.path()), std::string::npos)
        << status.error().message;
  }
}

// Damage in the header is either noticed or harmless; it never brings the process down. What our
// own reader lets pass libllama looks at, which gives up the process on some damage of a vocabulary.
TEST(GgufFile, RandomDamageNeverCrashes) {
  const std::vector<char> whole = bytes_of(fixture_path("llama.gguf"));
  Random random(20);
  std::size_t refused = 0;
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<char> damaged = whole;
    for (int flip = 0; flip < 3; ++flip) {
      damaged[random.below(8192)] ^= static_cast<char>(1u << random.below(8));
    }
    const TemporaryFile file(damaged);
    auto opened = GgufFile::open(file.path());
    refused += !opened;
    if (opened) refused += !(*opened)->require_string("general.architecture");
  }
  EXPECT_GT(refused, 40u);
}

TEST(GgufFile, RefusesWhatIsNotAModel) {
  EXPECT_EQ(load("/no/such/model.gguf").error().code, ErrorCode::kNotFound);
  EXPECT_NE(load(::testing::TempDir()).error().message.find("not a regular file"),
            std::string::npos);
  const TemporaryFile text({'h', 'e', 'l', 'l', 'o'});
  EXPECT_NE(load(text.path()).error().message.find("not a GGUF file"), std::string::npos);
}

TEST(GgufFile, AnUnknownArchitectureIsNamed) {
  std::vector<char> bytes = bytes_of(fixture_path("llama.gguf"));
  const std::string from = "llama", to = "lhama";
  // The first occurrence is the value of general.architecture.
  const auto at = std::search(bytes.begin(), bytes.end(), from.begin(), from.end());
  ASSERT_NE(at, bytes.end());
  std::copy(to.begin(), to.end(), at);
  const TemporaryFile file(bytes);
  const Status status = load(file.path());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(status.error().message.find("lhama"), std::string::npos)
      << status.error().message;
}

}  // namespace gguf_file_test
}  // namespace kvspan::testing
